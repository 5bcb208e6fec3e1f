"""The connector as a zip (`--py-files`): its data source is read where nothing of it is on the path."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import spark_sink

#: Nothing but a zip given as an argument may have the connector.
ALONE = """
import importlib.util, sys
sys.meta_path = [each for each in sys.meta_path if "editable" not in repr(each).lower()]
root = sys.argv[1]
sys.path = [each for each in sys.path if each not in ("", root)]
assert importlib.util.find_spec("spark_sink") is None
"""
WRITE = """
sys.path.insert(0, sys.argv[2])
from pyspark.cloudpickle import dumps
from pyspark.sql.datasource import CaseInsensitiveDict
from spark_sink import AmqpDataSource
assert ".zip" in sys.modules["spark_sink"].__file__
sys.stdout.buffer.write(dumps(AmqpDataSource(CaseInsensitiveDict({"maxOffsetsPerTrigger": "7"}))))
"""
READ = """
import pickle
source = pickle.loads(sys.stdin.buffer.read())
assert type(source).__name__ == "AmqpDataSource" and ".zip" in sys.modules["spark_sink"].__file__
print(source.name(), source.options["MAXOFFSETSPERTRIGGER"])
"""


def run(program: str, *arguments: str, given: bytes = b"") -> bytes:
    root = Path(spark_sink.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", ALONE + program, str(root), *arguments],
        input=given,
        capture_output=True,
        cwd="/",
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    return done.stdout


def test_a_data_source_from_a_zip_brings_the_way_to_its_zip(tmp_path: Path) -> None:
    package = Path(spark_sink.__file__).parent
    with zipfile.ZipFile(tmp_path / "connector.zip", "w") as made:
        for file in package.rglob("*.py"):
            made.write(file, file.relative_to(package.parent))
    pickled = run(WRITE, str(tmp_path / "connector.zip"))
    assert run(READ, given=pickled).split() == [b"amqp", b"7"]
