"""`import gpu` is light, says once what is missing, and works without numba-cuda and without a driver."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HIDE_NUMBA_CUDA = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "numba_cuda":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""
SHOW_NUMBA_CUDA = """
import sys
from importlib.machinery import ModuleSpec
class Show:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, None) if name == "numba_cuda" else None
sys.meta_path.insert(0, Show())
"""
NO_DRIVER = """
import ctypes
def refuse(name):
    raise OSError(name)
ctypes.CDLL = refuse
"""
DRIVER = """
import ctypes
class Driver:
    def cuDriverGetVersion(self, version):
        version._obj.value = {version}
ctypes.CDLL = lambda name: Driver()
"""


def said(*code):
    """What Python writes to its error stream while it runs this code."""
    command = [sys.executable, "-W", "always", "-c", "\n".join(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_without_numba_cuda_it_names_the_simulator_and_what_to_install():
    text = said(HIDE_NUMBA_CUDA, "import gpu, gpu.kernel, gpu.cards, gpu.occupancy")
    assert text.count("UserWarning: gpu: numba-cuda is not installed") == 1
    assert "simulator" in text and "pip install 'minillm[cuda]'" in text


def test_without_a_driver_it_names_the_emulator():
    text = said(SHOW_NUMBA_CUDA, NO_DRIVER, "import gpu, gpu.kernel")
    assert text.count("UserWarning: gpu: there is no NVIDIA driver") == 1 and "emulator" in text


@pytest.mark.parametrize(("version", "shown"), [(12040, "12.4"), (12090, "12.9")])
def test_with_an_old_driver_it_names_the_one_that_is_needed(version, shown):
    text = said(SHOW_NUMBA_CUDA, DRIVER.format(version=version), "import gpu")
    assert f"gpu: the NVIDIA driver is for CUDA {shown}, too old" in text and "driver 580" in text


@pytest.mark.parametrize("version", [13000, 13010])
def test_with_a_driver_it_is_silent(version):
    assert said(SHOW_NUMBA_CUDA, DRIVER.format(version=version), "import gpu", "assert gpu.missing() is None") == ""


def test_the_warning_stands_at_the_line_that_imports(tmp_path):
    (tmp_path / "mine.py").write_text("\nimport gpu\n")
    text = said(HIDE_NUMBA_CUDA, f"sys.path.insert(0, {str(tmp_path)!r})", "import mine")
    assert f"{tmp_path / 'mine.py'}:2: UserWarning: gpu: " in text


def test_importing_is_light():
    heavy = ("numba", "numpy", "cuda", "rich", "llvmlite", "subprocess")
    said("import sys, gpu", f"loaded = [m for m in {heavy} if m in sys.modules]", "assert not loaded, loaded")


def test_machines_load_when_named():
    code = (
        "import sys, gpu",
        "assert not [m for m in sys.modules if m.startswith('gpu.')]",
        "from gpu import Device",
        "assert Device.__module__ == 'gpu.device' and 'gpu.emulator' not in sys.modules",
        "import gpu.kernel",
        "assert gpu.kernel.__name__ == 'gpu.kernel'",
    )
    said(*code)


def test_a_name_that_is_not_there_is_an_attribute_error():
    import gpu

    with pytest.raises(AttributeError, match="module 'gpu' has no attribute 'Tpu'"):
        _ = gpu.Tpu


def test_a_device_without_a_gpu_says_what_to_use_instead():
    pytest.importorskip("numba_cuda")
    import gpu

    if gpu.missing() is None:
        pytest.skip("there is a driver")
    with pytest.raises(RuntimeError, match=r"^gpu: .*: use Emulator\(\) in place of Device\(\)$"):
        gpu.Device()


def test_a_device_without_numba_cuda_says_what_to_use_instead():
    ask = "try: gpu.Device()\nexcept RuntimeError as error: assert 'numba-cuda is not installed' in str(error)"
    said(HIDE_NUMBA_CUDA, "import gpu", ask, "else: raise AssertionError('a device without numba-cuda')")


def test_what_the_device_calls_is_there():
    """A GPU is needed to call them; that the installed versions have them is seen without."""
    pytest.importorskip("numba_cuda")
    core = pytest.importorskip("cuda.core")
    driver = pytest.importorskip("cuda.bindings.driver")
    from numba import cuda
    from numba.cuda.core import config
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.dispatcher import CUDADispatcher, _Kernel

    import gpu.device

    imports = [n for n in ast.walk(ast.parse(Path(gpu.device.__file__).read_text())) if isinstance(n, ast.ImportFrom)]
    assert len(imports) > 8
    wanted = [(import_module(n.module), alias.name) for n in imports for alias in n.names]
    used = {
        core.Device: "set_current name compute_capability properties sync create_stream device_id",
        type(core.LEGACY_DEFAULT_STREAM): "record",
        core.Event: "sync __sub__",
        cuda: "is_available select_device current_context to_device device_array jit",
        DeviceNDArray: "copy_to_host reshape",
        CUDADispatcher: "compile __getitem__",
        _Kernel: "library",
        config: "CUDA_LOW_OCCUPANCY_WARNINGS",
        driver: "cuKernelSetAttribute CUdevice",
        driver.CUresult: "CUDA_SUCCESS",
        driver.CUfunction_attribute: "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    }
    wanted += [(owner, name) for owner, names in used.items() for name in names.split()]
    assert [name for owner, name in wanted if not hasattr(owner, name)] == []
    assert core.StreamOptions(nonblocking=False) and core.EventOptions(timing_enabled=True)
