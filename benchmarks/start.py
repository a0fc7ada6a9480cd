"""What it costs to start: `python benchmarks/start.py`.

Fresh processes take turns; the medians of their CPU time are compared with `import datasets`, which the package imports
to register its name.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

COMMANDS = {
    "import datasets": [sys.executable, "-c", "import datasets"],
    "import reasonknee_hf": [sys.executable, "-c", "import reasonknee_hf"],
    "reasonknee --help": [sys.executable, "-m", "reasonknee_hf", "--help"],
}


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):  # the first round warms the file cache
        for name, command in COMMANDS.items():
            seconds[name].append(cpu_seconds(command))
    peer = statistics.median(seconds["import datasets"][1:])
    print("| what | CPU, s, median [range] | x import datasets |\n|---|---|---|")
    for name, (_, *runs) in seconds.items():
        median = statistics.median(runs)
        print(f"| {name} | {median:.2f} [{min(runs):.2f}-{max(runs):.2f}] | {median / peer:.2f} |")


if __name__ == "__main__":
    main()
