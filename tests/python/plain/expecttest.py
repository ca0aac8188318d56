"""What torch.testing._internal needs to be imported where expecttest is not installed (run.py)."""

import unittest

ACCEPT = False


class TestCase(unittest.TestCase):
    def assertExpectedInline(self, actual, expect, skip=0):
        self.assertEqual(actual, expect)
