"""OpenVINO, NNCF and ONNX Runtime in the benchmark."""

from helpers.processes import run_tests_alone


def test_the_rows_of_the_peers():
    run_tests_alone("rows_of_peers.py")
