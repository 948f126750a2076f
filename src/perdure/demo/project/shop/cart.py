"""What somebody buys."""

from shop.split import split


class Cart:
    """Lines of (name, cents). A discount is taken off every line in proportion to its price."""

    def __init__(self, lines):
        self.lines = list(lines)
        self.discount = 0

    def total(self):
        return sum(cents for _, cents in self.lines) - self.discount

    def due(self):
        """(name, cents) after the discount; the receipt's lines."""
        off = split(self.discount, [cents for _, cents in self.lines])
        return [(name, cents - part) for (name, cents), part in zip(self.lines, off)]
