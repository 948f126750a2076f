"""Fenced, conditional commits of records and chunks. The log stores records without reading their meaning."""
