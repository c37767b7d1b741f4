# Simulation of the charge protocol (charge-protocol.md): random schedules of charges, lost and late calls, duplicates in the network,
# crashes, refunds, lost writes and service without the store. For each class of faults it prints
#   - the worst number of units admitted above the limit,
#   - how many schedules exceeded the units that the store lost plus the units served without it (must be 0), and
#   - the store's count minus the true count after everything was settled: 0 is exact; above 0 only after crashes (units granted to a
#     process that died); below 0 never.
# It exits with 1 if one of these does not hold. Python 3, standard library only:
#   python3 docs/decisions/charge-simulation.py [SCHEDULES]     5000 schedules a class unless given
import random
import sys


class Store:
    """What charge.lua does, for one key and day."""

    def __init__(self, limit):
        self.limit = limit
        self.t = 0
        self.g = {}
        self.r = {}

    def snapshot(self):
        return self.t, dict(self.g), dict(self.r)

    def restore(self, snapshot):
        self.t, self.g, self.r = snapshot[0], dict(snapshot[1]), dict(snapshot[2])

    def call(self, producer, ack, rack, want, cost):
        t, g, r = self.t, self.g.get(producer, 0), self.r.get(producer, 0)
        if g < ack:  # units served without the store, or writes that the store lost
            t += ack - g
            g = ack
        if r < rack:  # refunds
            t -= rack - r
            r = rack
        grant = g - ack  # granted before, and the reply was lost: returned on every code
        if want > grant:
            need, left = want - grant, max(0, self.limit - t)
            if need > left:  # whole charges only
                need = max(0, left - (grant + left) % cost)
            t += need
            g += need
            grant += need
        self.t, self.g[producer], self.r[producer] = t, g, r
        return grant


class Node:
    """A gateway process: what it acknowledges, and what it really did."""

    def __init__(self, producer):
        self.producer = producer
        self.ack = self.rack = self.admitted = self.refunded = 0

    def settle(self, grant, use):
        # Rule 3: credit that no request takes is returned at once.
        self.ack += grant
        self.rack += grant - use
        self.admitted += use


def run(seed, crash=False, loss=False, offline=0):
    chance = random.Random(seed)
    store = Store(chance.randint(1, 60))
    nodes = [Node(f"n{i}") for i in range(chance.randint(1, 5))]
    dead, late, past = [], [], []
    lost = served_offline = worst = boots = 0
    for _ in range(400):
        node = chance.choice(nodes)
        event = chance.random()
        if late and chance.random() < 0.3:  # a late or duplicated command runs
            store.call(*late.pop(chance.randrange(len(late))))
        if event < 0.06 and node.admitted > node.refunded:  # the upstream failed
            node.refunded += 1
            node.rack += 1
        elif event < 0.09 and crash:
            boots += 1
            nodes[nodes.index(node)] = Node(f"b{boots}")
            dead.append(node)
        elif event < 0.12 and offline:
            units = chance.randint(1, offline)
            node.ack += units
            node.admitted += units
            served_offline += units
        elif event < 0.13 and loss and past:
            before = dict(store.g)
            store.restore(chance.choice(past[-5:]))
            lost += sum(max(0, units - store.g.get(name, 0)) for name, units in before.items())
        else:
            cost = chance.randint(1, 3)
            want = cost * chance.randint(0, 3)
            call = (node.producer, node.ack, node.rack, want, cost)
            fate = chance.random()
            if fate < 0.15:  # lost or delayed: the node saw a timeout and uses no later reply of it
                late.append(call)
            elif fate < 0.3:  # it ran, and its reply was lost
                store.call(*call)
            else:
                grant = store.call(*call)
                node.settle(grant, min(grant, want) // cost * cost)
                if chance.random() < 0.1:
                    late.append(call)
        past.append(store.snapshot())
        worst = max(worst, sum(each.admitted - each.refunded for each in nodes + dead) - store.limit)
    for call in late:
        store.call(*call)
    for each in nodes:
        each.settle(store.call(each.producer, each.ack, each.rack, 0, 0), 0)
        store.call(each.producer, each.ack, each.rack, 0, 0)
    for each in dead:  # the journal of a dead process: it is merged and never grants
        store.call(each.producer, each.ack, each.rack, 0, 0)
    truth = sum(each.admitted - each.refunded for each in nodes + dead)
    return worst, store.t - truth, lost + served_offline


CLASSES = (
    ("timeouts, duplicates, refunds", {}),
    ("+ crashes", {"crash": True}),
    ("+ crashes, lost writes", {"crash": True, "loss": True}),
    ("+ crashes, offline service", {"crash": True, "offline": 3}),
    ("+ all", {"crash": True, "loss": True, "offline": 3}),
)

schedules = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
holds = True
for name, faults in CLASSES:
    ran = [run(seed, **faults) for seed in range(schedules)]
    worst = max(over for over, _, _ in ran)
    beyond = sum(over > allowed for over, _, allowed in ran)
    least, most = min(off for _, off, _ in ran), max(off for _, off, _ in ran)
    holds = holds and beyond == 0 and least >= 0 and (most == 0 or "crash" in faults)
    print(f"{name:32s} above the limit: {worst:3d} at most   beyond lost and offline: {beyond}   count - truth: {least} to {most}")
sys.exit(0 if holds else 1)
