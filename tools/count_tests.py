#!/usr/bin/env python3
"""Prints "PASSED FAILED SKIPPED" for the JUnit files of meson or pytest that are named, all together.

A test program that uses cmocka counts with the tests it ran, as its own closing lines say; any other
counts as one. Fails when a file is missing or names no test: a run that tested nothing is no pass.
"""
import re
import sys
import xml.etree.ElementTree as ET


def cmocka_counts(output):
    """(passed, failed, skipped) of the closing lines, or None when there are none."""
    def total(word):
        return sum(int(n) for n in re.findall(rf"\[\s*{word}\s*\] (\d+) test", output))
    if not re.search(r"\[=+\] \d+ test\(s\) run", output):
        return None
    return total("PASSED"), total("FAILED"), total("SKIPPED")


def count(path):
    passed = failed = skipped = 0
    for case in ET.parse(path).getroot().iter("testcase"):
        broken = case.find("failure") is not None or case.find("error") is not None
        output = (case.findtext("system-out") or "") + "\n" + (case.findtext("system-err") or "")
        counts = cmocka_counts(output)
        if counts:
            passed += counts[0]
            failed += counts[1] or (1 if broken else 0)
            skipped += counts[2]
        elif broken:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main():
    files = [count(path) for path in sys.argv[1:]]
    if not files or not all(map(sum, files)):
        print("no test was run", file=sys.stderr)
        return 1
    print(*map(sum, zip(*files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
