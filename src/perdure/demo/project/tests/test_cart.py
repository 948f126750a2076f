import unittest

from shop.cart import Cart


class CartTest(unittest.TestCase):
    def test_a_discount_is_shared_by_all_lines(self):
        cart = Cart([("bread", 300), ("milk", 100)])
        cart.discount = 40
        self.assertEqual(cart.due(), [("bread", 270), ("milk", 90)])

    def test_the_lines_add_up_to_the_total(self):
        cart = Cart([("tea", 240), ("tea", 240), ("tea", 240)])
        cart.discount = 100
        self.assertEqual(sum(cents for _, cents in cart.due()), cart.total())


if __name__ == "__main__":
    unittest.main()
