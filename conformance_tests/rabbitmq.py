"""Run the suite against a RabbitMQ of its own:

    python -m conformance_tests.rabbitmq [--if-installed] [--without-plugins] [pytest's arguments]

The node is Debian's rabbitmq-server on free ports of the loopback interface, with the plugins that the suite
asks for; all its files are in a temporary directory. It does not affect other programs on this machine.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

from benchmarks.brokers import RABBITMQ_SERVER, BrokerFailed, RabbitMQ
from benchmarks.client import HOST
from conformance_tests.plugins import PLUGINS
from conformance_tests.ports import free_port

ROOT = Path(__file__).parents[1]
MANAGEMENT = "rabbitmq_management"
RABBITMQCTL = RABBITMQ_SERVER.with_name("rabbitmqctl")


class JudgedRabbitMQ(RabbitMQ):
    """A RabbitMQ with the exchange types of the suite, the management API, and a control command."""

    def __init__(self, plugins: Collection[str] = (*PLUGINS.values(), MANAGEMENT)) -> None:
        super().__init__()
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
        return f"{RABBITMQCTL} -n {self.environment['RABBITMQ_NODENAME']}"


@cache
def installed_version() -> str:
    """Return the version of the RabbitMQ that is installed: not that of a later one that is judged, too."""
    command = [str(RABBITMQCTL), "version", "--silent"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def judge(broker: JudgedRabbitMQ, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pytest", "conformance_tests"]
    command += ["--amqp-url", f"amqp://guest:guest@{HOST}:{broker.port}/", "--ctl", broker.ctl]
    if broker.plugins:
        # No test is skipped because of a missing plugin.
        command.append("--complete")
    if broker.http_port:
        command += ["--http-url", f"http://guest:guest@{HOST}:{broker.http_port}"]
    # rabbitmqctl finds the node by the same environment: its port mapper, its cookie.
    environment = os.environ | broker.environment
    return subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    arguments = sys.argv[1:]
    optional = "--if-installed" in arguments
    if optional:
        arguments.remove("--if-installed")
        if not RABBITMQ_SERVER.exists():
            print(f"skipped: {RABBITMQ_SERVER} is not installed (apt-get install rabbitmq-server)")
            return 0
    bare = "--without-plugins" in arguments
    if bare:
        arguments.remove("--without-plugins")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broker = JudgedRabbitMQ(()) if bare else JudgedRabbitMQ()
    try:
        print(f"RabbitMQ started in {broker.start():.1f} s", flush=True)
        return judge(broker, arguments)
    except BrokerFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    finally:
        broker.close()


if __name__ == "__main__":
    sys.exit(main())
