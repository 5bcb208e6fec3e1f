"""Where Debian's RabbitMQ is installed: in this system, or in the root directory of another one.

A later RabbitMQ than this system's has to be in a root of its own, because it comes with its own Erlang. Its
programs run by chroot, so as root; everything else of it, network and processes, is this system's.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/")
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
CTL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
RELEASES = "usr/lib/rabbitmq/lib"
RELEASE = "rabbitmq_server-"


@dataclass(frozen=True, slots=True)
class Installation:
    root: Path = SYSTEM

    @property
    def exists(self) -> bool:
        # The program is an absolute link: it leads nowhere as seen from outside of a root.
        path = self.root / SERVER.lstrip("/")
        return path.exists() or path.is_symlink()

    @property
    def lack(self) -> str:
        """What is missing, if it does not exist."""
        return f"{self.root / SERVER.lstrip('/')} is missing: apt-get install rabbitmq-server"

    @property
    def version(self) -> str:
        releases = sorted((self.root / RELEASES).glob(f"{RELEASE}*"))
        return releases[-1].name.removeprefix(RELEASE) if releases else ""

    def command(self, *argv: str) -> list[str]:
        return [*argv] if self.root == SYSTEM else ["chroot", str(self.root), *argv]

    def new_directory(self, prefix: str) -> Path:
        """A temporary directory that programs of this installation see."""
        within = None if self.root == SYSTEM else self.root / "tmp"
        return Path(tempfile.mkdtemp(prefix=prefix, dir=within))

    def seen(self, path: Path) -> str:
        """The path as these programs have to be told it."""
        return str(SYSTEM / path.relative_to(self.root))


#: What `apt-get install rabbitmq-server` leaves in this system.
HERE = Installation()
