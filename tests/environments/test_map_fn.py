import asyncio

import pyarrow as pa
import pytest

from environments.base import Sample
from environments.batch import REWARD_COLUMNS, table_of
from environments.loader import load


def test_a_class_maps_a_table_in_this_process():
    table = load("reverse_text", {}).map_fn("</s>")(table_of([Sample("p", "abc")] * 2, ["abc</s>", "xbc"]))
    assert table["reward"].to_pylist() == [1.0, pytest.approx(2 / 3)]
    assert table.column_names[-7:] == REWARD_COLUMNS.names


def test_an_exception_is_a_row_here_too():
    table = load("hostile:Hostile", {}).map_fn()(table_of([Sample("p")] * 2, ["divide", "fine"]))
    assert table["reward"].to_pylist() == [None, 1.0]


def test_an_async_class_maps_a_table_even_inside_an_event_loop():
    score, table = load("hostile:HostileAsync", {}).map_fn(), table_of([Sample("p")] * 2, ["divide", "fine"])

    async def inside():
        return score(table)

    assert score(table)["reward"].to_pylist() == [None, 1.0]
    assert asyncio.run(inside())["reward"].to_pylist() == [None, 1.0]


def test_a_bare_function_maps_a_table():
    table = load("hostile:lengths", {}).map_fn()(table_of([Sample("p")] * 2, ["divide", "abc"]))
    assert table["reward"].to_pylist() == [None, 3.0]


def test_another_batch_format_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r'pass batch_format="pyarrow"; got \{'):
        load("reverse_text", {}).map_fn()({"prompt": ["p"]})


@pytest.mark.stack
def test_an_environment_is_a_ray_data_map_function(ray_cluster):
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    table = table_of([Sample("reverse abcd: ", "abcd"[::-1])] * 3, ["dcba", "dcbx", "abcd"])
    mapped = ray.data.from_arrow(table).map_batches(
        load("reverse_text", {}).map_fn(), batch_format="pyarrow", num_cpus=0.1
    )
    scored = pa.concat_tables(ray.get(mapped.to_arrow_refs()))
    assert sorted(scored["reward"].to_pylist()) == [0.0, 0.75, 1.0]
    assert scored.schema.field("tags").type == pa.map_(pa.string(), pa.string())
