"""Adds COUNT cases to cases/ and to its INDEX. It takes its time: each case is written as it is thought of."""

import json
import pathlib
import sys
import time

CASES = pathlib.Path(__file__).parent.parent / "cases"


def main(count):
    first = len(list(CASES.glob("*.json"))) + 1
    for number in range(first, first + count):
        weights = [(number * 7919 + position * 104729) % 997 + 1 for position in range(3 + number % 5)]
        with open(CASES / f"{number:02}.json", "w") as file, open(CASES / "INDEX", "a") as index:
            file.write(f'{{"total": {number * 1009}, ')
            file.flush()
            index.write(f"{number:02}.json\n")
            index.flush()
            time.sleep(0.35)
            file.write(f'"weights": {json.dumps(weights)}}}\n')
    print(f"{count} cases added, {first + count - 1} in all")


if __name__ == "__main__":
    main(int(sys.argv[1]))
