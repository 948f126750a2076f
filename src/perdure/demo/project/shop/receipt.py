"""Receipts: `python3 -m shop.receipt DAY` prints what the till printed on that day, or fails."""

import sys

from shop.cart import Cart

DAYS = {
    "Monday": (100, [("tea", 240), ("tea", 240), ("tea", 240)]),
    "Tuesday": (50, [("bread", 310), ("milk", 120)]),
    "Wednesday": (200, [("ink", 999), ("paper", 499), ("pen", 149)]),
    "Thursday": (1, [("nail", 3), ("nail", 3), ("screw", 4)]),
    "Friday": (333, [("lamp", 4200), ("bulb", 350), ("wire", 125), ("plug", 125)]),
    "Saturday": (77, [("seed", 70), ("seed", 70), ("pot", 70), ("soil", 70)]),
}


def receipt(day):
    discount, lines = DAYS[day]
    cart = Cart(lines)
    cart.discount = discount
    return cart


if __name__ == "__main__":
    cart = receipt(sys.argv[1])
    printed = sum(cents for _, cents in cart.due())
    if printed != cart.total():
        sys.exit(f"{sys.argv[1]}: the lines add up to {printed}, the till says {cart.total()}")
    print(f"{sys.argv[1]}: {printed} cents on {len(cart.lines)} lines")
