"""The vocabulary: immutable facts, and the neutral parts that messages are made of."""
