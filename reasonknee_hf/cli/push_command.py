"""`reasonknee push`: converts, and pushes to a dataset repository as shards are finished."""

from __future__ import annotations

import argparse

from reasonknee_hf.cli.publish_options import add_publish_options, chosen_executor, publish_options


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "repo", metavar="OWNER/NAME", help="dataset repository; created where it does not exist"
    )
    parser.add_argument("--private", action="store_true", default=None, help="a new repository is private")
    parser.add_argument("--revision", help="branch to push to; created where it does not exist")
    parser.add_argument("--create-pr", action="store_true", help="open a pull request instead")
    parser.add_argument("--token", help="token that may write there (default: the stored one)")
    parser.add_argument(
        "--hub", metavar="URL", help="Hub to push to (default: HF_ENDPOINT, else huggingface.co)"
    )
    parser.add_argument("--folder", help="where files are made, and kept (default: a temporary folder)")
    parser.add_argument(
        "--delete-config", dest="delete_configs", action="append", default=[], metavar="NAME",
        help="remove another config with its files; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not look for defects of the release first",
    )
    add_publish_options(parser)
    source = parser.add_argument_group("source")
    source.add_argument(
        "--source", help="Hub dataset id, folder, fsspec URL or 'sample' (default: the published one)"
    )
    source.add_argument("--source-revision", help="branch, tag or commit of a Hub source")
    source.add_argument(
        "--endpoint", action="append", help="Hub or mirror to read the source from; best first"
    )
    source.add_argument("--images", help="another root for the volumes")


def run(args: argparse.Namespace) -> int:
    from reasonknee_hf.publish.push import push

    with chosen_executor(args) as executor:
        done = push(
            args.repo,
            args.config,
            folder=args.folder,
            private=args.private,
            branch=args.revision,
            create_pr=args.create_pr,
            token=args.token,
            hub_endpoint=args.hub,
            delete_configs=args.delete_configs,
            executor=executor,
            verify=args.verify,
            source=args.source,
            revision=args.source_revision,
            endpoint=args.endpoint,
            images=args.images,
            **publish_options(args),
        )
    print(done.pull_request or args.repo)
    return 0
