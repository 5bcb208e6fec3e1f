"""A standalone Spark cluster on the loopback interface: one master, two workers of one core each."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from benchmarks.client import HOST
from tests.spark_sink import session

START_MAX_S = 180.0
WORKERS = 2
MEMORY = "512m"
MASTER_AT = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = "Registering worker"
EXECUTOR = "CoarseGrainedExecutorBackend"


class Standalone:
    def __init__(self, directory: Path) -> None:
        session.environment()
        self._directory = directory
        self._home = Path(pyspark.__file__).parent
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = os.environ | {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(directory / "work"),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_NO_DAEMONIZE": "true",
        }
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        deploy = "org.apache.spark.deploy"
        ports = ("--host", HOST, "--port", "0", "--webui-port", "0")
        self._run("master", f"{deploy}.master.Master", *ports)
        found = self._wait_for("master", MASTER_AT)
        self.url = found[1]
        for number in range(WORKERS):
            limits = ("--cores", "1", "--memory", MEMORY)
            self._run(f"worker{number}", f"{deploy}.worker.Worker", *ports, *limits, self.url)
        deadline = time.monotonic() + START_MAX_S
        while self._text("master").count(REGISTERED) < WORKERS:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self._launch(name, [str(self._home / "bin" / "spark-class"), *arguments])

    def _launch(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self._directory,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self._processes.append(process)
        return process

    def _text(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def _wait_for(self, name: str, pattern: re.Pattern[str]) -> re.Match[str]:
        deadline = time.monotonic() + START_MAX_S
        while (found := pattern.search(self._text(name))) is None:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)
        return found

    def submit(self, module: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Run a module's file with spark-submit, on all cores of the cluster."""
        found = importlib.util.find_spec(module)
        assert found is not None and found.origin is not None
        command = [str(self._home / "bin" / "spark-submit"), "--master", self.url, *options]
        for setting in (
            f"spark.pyspark.python={sys.executable}",
            f"spark.driver.host={HOST}",
            f"spark.driver.bindAddress={HOST}",
            "spark.ui.enabled=false",
            f"spark.driver.memory={MEMORY}",
            f"spark.executor.memory={MEMORY}",
            "spark.executor.cores=1",
            "spark.task.maxFailures=4",
            f"spark.executorEnv.PYTHONPATH={os.environ['PYTHONPATH']}",
        ):
            command += ["--conf", setting]
        return self._launch("submit", [*command, found.origin, *arguments])

    def executors(self) -> list[int]:
        """Return the processes that run tasks."""
        found = []
        for process in self._processes:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    try:
                        if any(EXECUTOR in argument for argument in child.cmdline()):
                            found.append(child.pid)
                    except (psutil.NoSuchProcess, psutil.ZombieProcess):
                        continue
        return sorted(set(found))

    def log(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in self._directory.glob("*.log")
        )

    def stop(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
            process.wait()
