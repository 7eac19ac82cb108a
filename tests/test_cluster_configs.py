"""The examples for clusters stay what Ray accepts, and name what is there."""

import shlex
from pathlib import Path

import pytest
import ray
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
CLUSTER = ROOT / "configs" / "cluster"


def read(text: str) -> dict:
    return YAML(typ="safe").load(text)


def spec(name: str) -> dict:
    return read((CLUSTER / name).read_text())["spec"]


def test_the_job_trains_a_config_that_is_there():
    words = shlex.split(spec("rayjob.yaml")["entrypoint"])
    assert words[:3] == ["python", "-m", "app.train"]
    assert (ROOT / Path(words[3]).relative_to("/opt/telescope")).is_file()
    assert all("=" in word for word in words[4:])


def test_the_service_is_the_one_of_configs_serve():
    described = ServeDeploySchema.model_validate(read(spec("rayservice.yaml")["serveConfigV2"]))
    ours = ServeDeploySchema.model_validate(read((ROOT / "configs" / "serve.yaml").read_text()))
    assert [a.import_path for a in described.applications] == [a.import_path for a in ours.applications]
    assert described.http_options == ours.http_options


@pytest.mark.parametrize(
    ("name", "cluster"), [("rayjob.yaml", "rayClusterSpec"), ("rayservice.yaml", "rayClusterConfig")]
)
def test_pods_run_this_ray_and_share_the_runs(name, cluster):
    described = spec(name)[cluster]
    assert described["rayVersion"] == ray.__version__
    for group in (described["headGroupSpec"], *described["workerGroupSpecs"]):
        [container] = group["template"]["spec"]["containers"]
        assert {"name": "TELESCOPE_RUNS", "value": "/runs"} in container["env"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert {"name": "runs", "mountPath": "/runs"} in container["volumeMounts"]
        assert mounted <= {volume["name"] for volume in group["template"]["spec"]["volumes"]}


def test_ray_up_accepts_the_cluster():
    config = prepare_config(read((CLUSTER / "ray-up.yaml").read_text()))
    validate_config(config)
    assert [command.count("ray start --head") for command in config["head_start_ray_commands"]] == [0, 1, 0]
