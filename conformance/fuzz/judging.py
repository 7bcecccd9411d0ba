"""The text that judges in a standalone program, by the rules of `matching`."""

JUDGING = '''\
def axes_of(event, due):
    """For each leaf, and each vmap that the event knows of, the axis of its lanes, or None."""
    _, _, leaves, transforms = event
    if transforms is not None:
        entries = [list(entry[1]["batch_dims"])[-len(leaves) :] for entry in transforms if entry[0] == "batch"]
        return [[dims[place] for dims in reversed(entries)] for place in range(len(leaves))]
    further = [came.ndim - one.ndim + due[2] for came, one in zip(leaves, due[1])]
    most = max(0, *further)
    return [[0] * most if more == most else [None] * most for more in further]


def equal_lanes(came, due, lanes, axis_of):
    for vmap in range(lanes):
        axis = axis_of.get(vmap)
        if axis is None:
            came = np.expand_dims(came, vmap)
        elif vmap + axis < came.ndim:
            came = np.moveaxis(came, vmap + axis, vmap)
        else:
            return False
    if came.ndim != due.ndim or any(one not in (1, size) for one, size in zip(came.shape, due.shape)):
        return False
    return np.array_equal(np.broadcast_to(came, due.shape), due)


def is_due(event, due):
    label, leaves, lanes = due[:3]
    if event[0] != label or len(event[2]) != len(leaves):
        return False
    axes = axes_of(event, due)
    return any(
        all(
            equal_lanes(came, one, lanes, dict(zip(vmaps, of_leaf)))
            for came, one, of_leaf in zip(event[2], leaves, axes)
        )
        for vmaps in itertools.combinations(range(lanes), len(axes[0]))
    )


def steps_of(due):
    """The calls of each group together, which come in any order, and each other call alone."""
    steps = []
    for one in due:
        if one[4] and steps and steps[-1][0][4] == one[4]:
            steps[-1].append(one)
        else:
            steps.append([one])
    return steps


def in_order(ran, steps):
    """Whether these events ran in this order; what is optional may be left out."""
    possible = [{0}] + [set() for _ in ran]
    for place, starts in enumerate(possible):
        waiting = sorted(starts)
        while waiting:
            start = waiting.pop()
            if start == len(steps):
                continue
            step = steps[start]
            least = sum(not one[3] for one in step)
            if not least and start + 1 not in starts:
                starts.add(start + 1)
                waiting.append(start + 1)
            for count in range(max(least, 1), min(len(step), len(ran) - place) + 1):
                if once_each(ran[place : place + count], step):
                    possible[place + count].add(start + 1)
    return len(steps) in possible[-1]


def once_each(ran, due):
    """Whether these events ran in any order."""
    waiting = sorted(due, key=lambda one: one[3])
    for event in ran:
        place = next((place for place, one in enumerate(waiting) if is_due(event, one)), None)
        if place is None:
            return False
        del waiting[place]
    return all(one[3] for one in waiting)


def array(dtype, value):
    return np.asarray(value, dtype)


for runs in (1, 1, 2):
    events.clear()
    results = [compiled(*operands()) for _ in range(runs)]
    BARRIER()
    for result in results:
        for device, due in enumerate(RESULTS):
            for came, one in zip(result, due):
                came = np.asarray(came[device] if APART else came)
                assert np.array_equal(came, one), f"device {device}: the result is {came}, expected {one}"
    for device, due in enumerate(CALLS):
        ran = [event for event in events if event[1] == device]
        for labels in ORDERS:
            due_now = steps_of([one for one in due if one[0] in labels]) * runs
            ran_now = [event for event in ran if event[0] in labels]
            assert in_order(ran_now, due_now), f"device {device} ran {ran_now}, due were {due_now}"
        due_now, ran_now = [one for one in due if one[0] in ONCE] * runs, [one for one in ran if one[0] in ONCE]
        assert once_each(ran_now, due_now), f"device {device} ran {ran_now}, due were {due_now}"
        for event in ran:
            assert event[0] not in PURE or any(is_due(event, one) for one in due), f"device {device} ran {event}"
print("all is as expected")
'''
