"""Pack polymux for the workers of a cluster.

Python imports compiled modules from folders only, so `--py-files` with a wheel or a zip does not
do. Spark unpacks what is named in `spark.archives` into the working folder of each executor, and
a relative PYTHONPATH points the workers there. The workers need the same Python version and
system as the driver, with PySpark and pyarrow installed; polymux itself they get from here.
"""

import zipfile
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from polymux.spark.runtime.spark_home import package_folder

UNPACKED_FOLDER = "polymux_pkg"
DISCOVERY_PACKAGE = "pyspark_polymux"  # the package beside it by which Spark finds the data source
CORE_DEPENDENCIES = (
    "librt",
    "mypy_extensions",
)  # what the core imports beyond the standard library


def pack(target: Path) -> None:
    """Write polymux, its compiled modules and its companions to the zip file `target`."""
    package = package_folder()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        _add_tree(file, package, package.parent)
        found = package.parent / DISCOVERY_PACKAGE
        if found.is_dir():
            _add_tree(file, found, package.parent)
        for shared in _shared_modules(package):
            file.write(shared, shared.name)
        for name in CORE_DEPENDENCIES:
            spec = find_spec(name)
            if spec is None:
                continue  # only a compiled core needs them, and it would not run here either
            if spec.submodule_search_locations:
                for place in spec.submodule_search_locations:
                    _add_tree(file, Path(place), Path(place).parent)
            elif spec.origin is not None:
                file.write(spec.origin, Path(spec.origin).name)


def shipping_settings(archive: Path, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that bring `archive` to the executors, joined to the user's own."""
    archives = conf.get("spark.archives", "")
    path = conf.get("spark.executorEnv.PYTHONPATH", "")
    return {
        "spark.archives": ",".join(filter(None, [f"{archive}#{UNPACKED_FOLDER}", archives])),
        "spark.executorEnv.PYTHONPATH": ":".join(filter(None, [UNPACKED_FOLDER, path])),
    }


def _add_tree(file: zipfile.ZipFile, folder: Path, root: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            file.write(path, path.relative_to(root))


def _shared_modules(package: Path) -> list[Path]:
    """What mypyc puts beside the package: one module with the code of all compiled files."""
    beside = {path.resolve() for path in package.parent.glob("*__mypyc*.so")}
    try:
        listed = metadata.distribution("polymux").files or []
    except metadata.PackageNotFoundError:
        return sorted(beside)
    installed = {Path(str(entry.locate())).resolve() for entry in listed}
    # Other packages compiled by mypyc put theirs into the same folder.
    return sorted(beside & installed or beside)
