from exchanges.binding import Binding


def binding(arguments: dict[str, object]) -> Binding:
    return Binding("x", "q", "queue", "k", arguments)


def test_all_five_fields_make_the_identity() -> None:
    base = Binding("x", "q", "queue", "k", {"a": 1})
    others = [
        Binding("y", "q", "queue", "k", {"a": 1}),
        Binding("x", "r", "queue", "k", {"a": 1}),
        Binding("x", "q", "exchange", "k", {"a": 1}),
        Binding("x", "q", "queue", "l", {"a": 1}),
        Binding("x", "q", "queue", "k", {"a": 2}),
    ]
    assert len({base, *others}) == 6
    assert base == Binding("x", "q", "queue", "k", {"a": 1})
    assert base != "x"


def test_arguments_are_compared_by_value() -> None:
    assert binding({"a": 1, "b": [1, {"c": b"x"}]}) == binding({"b": [1, {"c": b"x"}], "a": 1})
    assert hash(binding({"a": {"n": [1]}})) == hash(binding({"a": {"n": [1]}}))
    assert binding({"a": float("nan")}) == binding({"a": float("nan")})


def test_types_that_python_mixes_up_stay_apart() -> None:
    values = [1, True, 1.0, "1", b"1", None, [1], [True], {"1": 1}, {"1": True}]
    assert len({binding({"a": value}) for value in values}) == len(values)
