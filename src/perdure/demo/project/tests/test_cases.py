import json
import pathlib
import unittest

from shop.split import split

CASES = pathlib.Path(__file__).parent.parent / "cases"


class CasesTest(unittest.TestCase):
    def test_the_index_names_each_case_once(self):
        self.assertEqual((CASES / "INDEX").read_text().split(), sorted(path.name for path in CASES.glob("*.json")))

    def test_every_case_is_split_without_a_cent_lost(self):
        for path in sorted(CASES.glob("*.json")):
            case = json.loads(path.read_text())
            with self.subTest(path.name):
                self.assertEqual(sum(split(case["total"], case["weights"])), case["total"])


if __name__ == "__main__":
    unittest.main()
