"""`mqd-backup`: a copy of a node's data directory, while the node runs or not. See docs/backup.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from persistence.copying import CannotCopy, Copied, copy_directory
from persistence.errors import PersistenceError

#: Metadata table that only the directory of a node of a cluster has.
CLUSTER_TABLE = "cluster"
CLUSTER_NOTE = (
    "This is the data directory of a cluster's node. Do not restore it alone: restore it only together with copies of all"
    " other nodes that were all made while the whole cluster was stopped."
)


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("copy", type=click.Path(path_type=Path))
@click.option(
    "--freeze-max",
    type=click.FloatRange(0.1, 60),
    default=2.0,
    metavar="SECONDS",
    help="How long a running node may be paused, in seconds. If the copy takes longer, there is no copy.",
)
def command(data_dir: Path, copy: Path, freeze_max: float) -> None:
    """Copy DATA_DIR, the data directory of a node, to the new directory COPY.

    A running node is paused during the copy. To restore the copy, start mqd with --data-dir COPY.
    """
    copied = copy_directory(data_dir, copy, freeze_s_max=freeze_max, cluster_table=CLUSTER_TABLE)
    click.echo(told(copied, copy))
    if copied.clustered:
        click.echo(CLUSTER_NOTE, err=True)


def told(copied: Copied, copy: Path) -> str:
    how = "no node was running"
    if copied.pid is not None:
        how = f"the node (process {copied.pid}) was paused for {copied.frozen_s:.3f} s"
    records = copied.entries.get("records", 0) + copied.entries.get("entries", 0)
    return f"copied to {copy}: {copied.copied_bytes} bytes, {records} records of messages; {how}"


def main() -> NoReturn:
    try:
        command.main(prog_name="mqd-backup", standalone_mode=False)
    except click.ClickException as failure:
        failure.show()
        sys.exit(failure.exit_code)
    except click.exceptions.Abort:
        sys.exit(1)
    except (CannotCopy, PersistenceError, OSError) as failure:
        click.echo(f"mqd-backup: {failure}", err=True)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
