#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_cases.py PROGRAM json|regex COUNT SEED: every text that PROGRAM writes must be valid for jsonschema, or match in re."""

import datetime
import json
import re
import subprocess
import sys

import jsonschema

# Formats that jsonschema checks by itself; the rest needs packages that would only be checked against each other.
FORMATS = jsonschema.FormatChecker(["email", "ipv4", "ipv6", "uuid"])


@FORMATS.checks("date", raises=ValueError)
def is_date(text):
    if isinstance(text, str):
        datetime.date.fromisoformat(re.sub("^0000", "2000", text))  # Python has no year 0; both are leap years
    return True


def check(case):
    if "text" not in case:
        return case["problem"]
    if "schema" in case:
        try:
            value = json.loads(case["text"])
        except ValueError as e:
            return f"no JSON: {e}"
        error = jsonschema.exceptions.best_match(
            jsonschema.Draft202012Validator(case["schema"], format_checker=FORMATS).iter_errors(value)
        )
        return error.message if error else None
    matches = re.fullmatch(case["regex"]["python"], case["text"], re.DOTALL | re.ASCII)
    return None if matches else "no match"


def main():
    program, kind, count, seed = sys.argv[1:]
    run = subprocess.run([program, kind, count, seed], stdout=subprocess.PIPE, check=False)
    cases = [json.loads(line) for line in run.stdout.decode("utf-8").split("\n") if line]
    failed = 0
    for case in cases:
        problem = check(case)
        if problem:
            failed += 1
            print(f"{problem}\n  {json.dumps(case, ensure_ascii=False)}")
    print(f"{len(cases)} cases, {failed} failed")
    return 1 if failed or not cases or len(cases) < int(count) else 0


if __name__ == "__main__":
    sys.exit(main())
