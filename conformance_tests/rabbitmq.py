"""Run the suite against a RabbitMQ of its own:

    python -m conformance_tests.rabbitmq [--if-installed] [--without-plugins] [--root DIR] [pytest's options]

The node is Debian's rabbitmq-server on free ports of the loopback interface, with the plugins that the suite
asks for; all its files are in a temporary directory. It does not affect other programs on this machine.
`--root` is the root directory of another Debian, whose RabbitMQ is judged (conformance_tests/README.md).
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from benchmarks.brokers import BrokerFailed, RabbitMQ
from benchmarks.client import HOST
from benchmarks.installation import CTL, HERE, Installation
from conformance_tests.plugins import PLUGINS
from conformance_tests.ports import free_port

ROOT = Path(__file__).parents[1]
MANAGEMENT = "rabbitmq_management"


class JudgedRabbitMQ(RabbitMQ):
    """A RabbitMQ with the exchange types of the suite, the management API, and a control command."""

    def __init__(
        self,
        plugins: Collection[str] = (*PLUGINS.values(), MANAGEMENT),
        installation: Installation = HERE,
    ) -> None:
        super().__init__(installation)
        self.plugins = plugins
        #: Additional lines of its configuration.
        self.settings: tuple[str, ...] = ()
        self.environment: dict[str, str] = {}
        self.http_port = 0

    def _command(self) -> tuple[list[str], dict[str, str]]:
        self.port = free_port()
        command, self.environment = super()._command()
        self.environment["RABBITMQ_DIST_PORT"] = str(free_port())
        (self.directory / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        lines = [*self.settings]
        if MANAGEMENT in self.plugins:
            self.http_port = free_port()
            lines += [f"management.tcp.ip = {HOST}", f"management.tcp.port = {self.http_port}"]
        with (self.directory / "rabbitmq.conf").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        return command, self.environment

    @property
    def ctl(self) -> str:
        return shlex.join(self.installation.command(CTL, "-n", self.environment["RABBITMQ_NODENAME"]))


def judge(broker: JudgedRabbitMQ, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest"]
    if not any(argument.startswith("conformance_tests") for argument in arguments):
        command.append("conformance_tests")
    command += ["--amqp-url", f"amqp://guest:guest@{HOST}:{broker.port}/", "--ctl", broker.ctl]
    if broker.plugins:
        # No test is skipped because of a missing plugin.
        command.append("--complete")
    if broker.http_port:
        command += ["--http-url", f"http://guest:guest@{HOST}:{broker.http_port}"]
    if broker.installation != HERE:
        command += ["--rabbitmq-root", str(broker.installation.root)]
    # rabbitmqctl finds the node by the same environment: its port mapper, its cookie.
    environment = os.environ | broker.environment
    return subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance_tests.rabbitmq", allow_abbrev=False)
    parser.add_argument("--if-installed", action="store_true", help="success without a RabbitMQ")
    parser.add_argument("--without-plugins", action="store_true", help="AMQP only")
    parser.add_argument("--root", type=Path, default=HERE.root, help="of another Debian, entered by chroot")
    options, arguments = parser.parse_known_args()
    installation = Installation(options.root.resolve())
    if options.if_installed and not installation.exists:
        print(f"skipped: {installation.lack}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plugins = () if options.without_plugins else (*PLUGINS.values(), MANAGEMENT)
    broker = JudgedRabbitMQ(plugins, installation)
    try:
        print(f"RabbitMQ {installation.version} started in {broker.start():.1f} s", flush=True)
        return judge(broker, arguments)
    except BrokerFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    finally:
        broker.close()


if __name__ == "__main__":
    sys.exit(main())
