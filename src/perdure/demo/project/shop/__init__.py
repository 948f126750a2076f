"""Prices and receipts, in whole cents."""
