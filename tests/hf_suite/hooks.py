"""pytest's hooks for a run of their suite: skip what we skip, and count."""

import pytest
from tests.models.plainformer.subject import SKIPPED_BY_US

OURS = "skipped by us: "
STAND_IN = "stand-in"
MARKERS = ("generate", "flash_attn_test", "torch_compile_test", "torch_export_test")  # theirs
reports: dict[str, list[pytest.TestReport]] = {}  # of each test: those of its subtests, then its own


def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items):
    for item in items:
        reason = SKIPPED_BY_US.get(item.originalname)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=OURS + reason))
        # Reports bring what is noted here from the process that runs the test to the one that counts.
        item.user_properties += [(STAND_IN, base.__name__) for base in item.cls.__mro__ if "is_stand_in" in vars(base)]


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        reports.setdefault(report.nodeid, []).append(report)


def verdict(of_one_test: list[pytest.TestReport]) -> str:
    """A test whose subtests are skipped counts as skipped, where pytest says that it passed."""
    if any(report.failed for report in of_one_test):
        return "failed"
    if not all(report.skipped for report in of_one_test[:-1] or of_one_test):
        return "passed"
    return "skipped by us" if OURS in reason_of(of_one_test) else "skipped by them"


def reason_of(of_one_test: list[pytest.TestReport]) -> str:
    """Why a test was skipped."""
    return str(of_one_test[0].longrepr[2])


def pytest_terminal_summary(terminalreporter):
    """The four numbers, the reasons for what we skipped, and the mixins whose tests there are none of."""
    tests: dict[str, list] = {"passed": [], "skipped by them": [], "skipped by us": [], "failed": []}
    for of_one_test in reports.values():
        tests[verdict(of_one_test)].append(of_one_test)
    reasons = [reason_of(of_one_test).partition(OURS)[2] for of_one_test in tests["skipped by us"]]
    terminalreporter.section("transformers' own tests on Plainformer")
    for reason in sorted(set(reasons)):
        terminalreporter.write_line(f"skipped by us, {reasons.count(reason)} times: {reason}")
    noted = [entry for of_one_test in reports.values() for report in of_one_test for entry in report.user_properties]
    for name in sorted({value for key, value in noted if key == STAND_IN}):
        terminalreporter.write_line(f"not run, as the archive leaves them out: the tests of {name}")
    terminalreporter.write_line(", ".join(f"{verdict} {len(of_verdict)}" for verdict, of_verdict in tests.items()))
