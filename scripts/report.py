"""Report of a run: pictures and one self-contained page, in the run folder.

    python scripts/report.py RUN_FOLDER [RUN_FOLDER ...]

Writes RUN_FOLDER/report.html and the PNGs in RUN_FOLDER/report/. The run may still be going on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.report.run_report import write_report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER")
    status = 0
    for folder in parser.parse_args().folders:
        try:
            print(write_report(folder))
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    sys.exit(main())
