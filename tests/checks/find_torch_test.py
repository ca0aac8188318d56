"""cmake/torch.cmake on made-up torch folders: versions, CPU and CUDA, with and without headers."""

import pathlib
import re
import subprocess
import tempfile
import unittest

FIND_TORCH = pathlib.Path(__file__).parents[2] / "cmake/torch.cmake"
PROJECT = f"""
cmake_minimum_required(VERSION 3.22)
project(x LANGUAGES NONE)
# Only what a test puts there is found, not what the machine has.
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
include({FIND_TORCH})
get_target_property(libraries tessera_torch INTERFACE_LINK_LIBRARIES)
message(STATUS "libraries ${{libraries}}")
"""
CPU = ["lib/libtorch.so", "lib/libtorch_cpu.so", "lib/libc10.so"]
CUDA = ["lib/libtorch_cuda.so", "lib/libc10_cuda.so"]


class FindTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.site = pathlib.Path(folder.name) / "site-packages"
        self.torch = self.site / "torch"

    def make(self, version, files):
        for name in ["version.py", *files]:
            path = self.torch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (self.torch / "version.py").write_text(f"__version__ = '{version}'\n", encoding="utf-8")

    def configure(self):
        """(worked, what CMake printed, as one line)"""
        source = self.site / "project"
        source.mkdir(parents=True)
        (source / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
        command = ["cmake", "-S", source, "-B", source / "build"]
        done = subprocess.run(
            [*command, f"-DTESSERA_TORCH_DIR={self.torch}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode == 0, re.sub(r"\s+", " ", done.stdout)

    def test_a_cpu_torch_needs_no_cuda(self):
        self.make("2.13.0+cpu", CPU)
        worked, printed = self.configure()
        self.assertTrue(worked, printed)
        self.assertIn("CUDA OFF, NCCL OFF", printed)
        self.assertNotIn("torch_cuda", printed)

    def test_a_cuda_torch_without_cuda_headers_has_no_nccl(self):
        self.make("2.12.1+cu130", CPU + CUDA)
        worked, printed = self.configure()
        self.assertTrue(worked, printed)
        self.assertIn("lib/libtorch_cuda.so", printed)
        if not pathlib.Path("/usr/local/cuda/include/nccl.h").exists():
            self.assertIn("CUDA ON, NCCL OFF", printed)

    def test_a_cuda_torch_with_the_headers_that_pip_installs_has_nccl(self):
        toolkit = ("cuda_runtime", "crt/host_config", "cusparse", "cublas_v2", "cusolverDn")
        headers = [f"../nvidia/cu13/include/{name}.h" for name in toolkit]
        self.make("2.11.0", CPU + CUDA)
        self.make("2.11.0", ["../nvidia/nccl/include/nccl.h", *headers])
        worked, printed = self.configure()
        self.assertTrue(worked, printed)
        self.assertIn("CUDA ON, NCCL ON", printed)

    def test_other_versions_are_refused_by_name(self):
        for version in ("2.10.2", "2.14.0", "3.0.0"):
            with self.subTest(version):
                self.setUp()
                self.make(version, CPU)
                worked, printed = self.configure()
                self.assertFalse(worked)
                self.assertIn("tessera needs torch 2.11 to 2.13", printed)
                self.assertIn(version, printed)

    def test_a_folder_that_is_no_torch_is_refused(self):
        worked, printed = self.configure()
        self.assertFalse(worked)
        self.assertIn("which holds no version.py and lib/libtorch_cpu.so", printed)


if __name__ == "__main__":
    unittest.main()
