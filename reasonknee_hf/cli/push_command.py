"""`reasonknee push`: converts, and pushes to a dataset repository as shards are finished."""

from __future__ import annotations

import argparse

from reasonknee_hf.cli.publish_options import add_publish_options, chosen_options, tell
from reasonknee_hf.publish.options import PushOptions


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "repo", metavar="OWNER/NAME", help="dataset repository; created where it does not exist"
    )
    add_publish_options(parser, PushOptions)


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.publish.push import push

    with chosen_options(args, PushOptions) as options:
        done = push(args.repo, **options)
    if done.plan is not None and not args.json:
        for what, value in done.plan.items():
            print(f"{what}: {' '.join(value) if isinstance(value, list) else value}")
    elif args.json:
        tell(done, args, {"repository": args.repo})
    else:
        print(done.pull_request or args.repo)
    return 0
