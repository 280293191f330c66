"""Local files without a `chmod` process for each: checkpoints, state, tables on local disks.

Shell: the JVM of the session.

Rules:
- Hadoop sets the mode of a new local file by running `chmod`, twice a file: eight processes for
  every micro-batch, and more for stateful ones (25 ms each on a busy machine). Here the JVM sets it
  by a call. Names, modes and checksums of files are the same.
- Spark brings a compiler (Janino), so no jar is needed. Where any of it is missing the session
  keeps Hadoop's own way, which is only slower.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import logging
import os
from typing import Any, Final

log = logging.getLogger("kohort.spark")
CLASS: Final = "kohort.LocalFilesWithoutProcesses"
SOURCE: Final = """
package kohort;

public class LocalFilesWithoutProcesses extends org.apache.hadoop.fs.RawLocalFileSystem {
  public void setPermission(
      org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
      throws java.io.IOException {
    if (permission.getStickyBit()) {
      super.setPermission(path, permission);
    } else {
      java.nio.file.Files.setPosixFilePermissions(
          pathToFile(path).toPath(),
          java.nio.file.attribute.PosixFilePermissions.fromString(permission.toString()));
    }
  }
}
"""
_ADD: Final = "addFileSystemForTesting"
_ADD_TYPES: Final = (
    "java.net.URI",
    "org.apache.hadoop.conf.Configuration",
    "org.apache.hadoop.fs.FileSystem",
)


def set_modes_by_calls(context: Any) -> bool:
    """Let the JVM of a local session set the modes of local files by calls.

    Args:
        context: the session's SparkContext.

    Returns whether it does; it does not on Windows, nor where Spark lacks what this rests on.
    """
    if os.name != "posix":
        return False
    try:
        _replace(context._jvm, context._gateway, context._jsc.hadoopConfiguration())
    except Exception as error:  # Spark's and Hadoop's inner parts may change with any release
        log.debug("the JVM runs chmod for every local file: %s", error)
        return False
    return True


def _replace(jvm: Any, gateway: Any, configuration: Any) -> None:
    """Put a file system of our class where Hadoop keeps the one for `file:`."""

    def array(type_: Any, *elements: Any) -> Any:
        made = gateway.new_array(type_, len(elements))
        for index, element in enumerate(elements):
            made[index] = element
        return made

    classes, objects = jvm.java.lang.Class, jvm.java.lang.Object
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE)
    constructor = compiler.getClassLoader().loadClass(CLASS).getConstructor(array(classes))
    files = jvm.org.apache.hadoop.fs.LocalFileSystem(constructor.newInstance(array(objects)))
    root = jvm.java.net.URI("file:///")
    files.initialize(root, configuration)
    types = array(classes, *map(classes.forName, _ADD_TYPES))
    add = classes.forName(_ADD_TYPES[-1]).getDeclaredMethod(_ADD, types)
    add.setAccessible(True)
    add.invoke(None, array(objects, root, configuration, files))
