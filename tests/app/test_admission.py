import pickle

from app.admission import Cursor, Gate, Ticket


def admitted(gate: Gate) -> list[int]:
    """Every group that may start now."""
    while gate.ticket(len(gate.tickets)) is not None:
        pass
    return [group for ticket in gate.tickets for group in ticket.groups]


def gate(**changes) -> Gate:
    built = Gate(**({"prompts_per_step": 4, "max_async": 1, "steps": 10} | changes))
    built.begin(0, Cursor())
    return built


def test_sampling_runs_ahead_by_max_async_batches_and_no_further():
    for ahead, expected in [(0, 4), (1, 8), (2, 12)]:
        assert admitted(gate(max_async=ahead)) == list(range(expected))


def test_a_step_done_admits_one_more_batch():
    one = gate(max_async=0)
    admitted(one)
    one.done = 1
    assert admitted(one) == list(range(8))


def test_no_group_starts_for_a_step_after_the_last():
    assert len(admitted(gate(steps=1, max_async=5))) == 4


def test_a_discarded_group_gives_its_place_back_in_its_own_epoch_only():
    one = gate(max_async=0)
    admitted(one)
    one.give_back(epoch=7, count=3)
    assert len(admitted(one)) == 4
    one.give_back(epoch=0, count=3)
    assert admitted(one) == list(range(7))


def test_tickets_are_remembered_so_that_a_retried_read_replays_exactly():
    one = gate(groups_per_ticket=3, max_async=0)
    first = [one.ticket(0), one.ticket(1)]
    assert [ticket.groups for ticket in first] == [(0, 1, 2), (3,)]
    assert [one.ticket(0), one.ticket(1)] == first
    assert one.ticket(2) is None


def test_a_new_epoch_draws_the_groups_that_were_in_flight_again_before_fresh_ones():
    one = gate(max_async=0)
    admitted(one)
    cursor = Cursor().advanced([0, 1, 2, 4])
    assert cursor == Cursor(5, (3,))
    assert one.begin(1, cursor) == 1
    assert admitted(one) == [3, 5, 6, 7]
    assert one.ended(0)
    assert not one.ended(1)


def test_the_cursor_forgets_what_has_been_consumed():
    assert Cursor(5, (3,)).advanced([3, 5]) == Cursor(6, ())


def test_the_gate_knows_how_many_groups_were_admitted_up_to_each_version():
    one = gate(max_async=1)
    admitted(one)
    assert [ticket.version for ticket in one.tickets] == [0] * 8
    one.done = 2
    admitted(one)
    assert one.admitted_since(-1) == [0, 8, 8, 16]
    assert one.admitted_since(2) == [16]


def test_a_ticket_costs_two_numbers_of_memory_however_many_groups_it_has():
    one = gate(groups_per_ticket=4, steps=10_000)
    before = len(pickle.dumps(one))
    for step in range(1, 5_001):
        one.done = step
        one.ticket(step - 1)
    assert one.tickets[-1] == Ticket(4_999, (19_996, 19_997, 19_998, 19_999), 5_000, 20_000)
    assert len(pickle.dumps(one)) - before < 5_000 * 20
