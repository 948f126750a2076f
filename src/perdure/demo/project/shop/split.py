"""Dividing an amount."""


def split(total, weights):
    """The total in parts proportional to the weights: whole cents that add up to it."""
    whole = sum(weights)
    return [round(total * weight / whole) for weight in weights]
