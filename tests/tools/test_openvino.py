"""The encoder and its heads in OpenVINO."""

from helpers.processes import run_tests_alone


def test_graphs_in_openvino():
    run_tests_alone("openvino_graphs.py")
