"""What `fit` refuses before it begins, since it would go wrong hours later."""

from __future__ import annotations

import pytest
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from training import cut, data, net, trainer


def test_a_schedule_that_ends_before_the_run():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    run = trainer(model, optimizer, scheduler=OneCycleLR(optimizer, max_lr=0.1, total_steps=5), accumulate=2)
    batches = cut(data(12), (4, 4, 4))
    with pytest.raises(ValueError, match="total_steps"):
        run.fit(batches, epochs=3)
    assert run.update == 0
    run.fit(batches, epochs=3, max_steps=5)
    assert run.update == 5


def test_a_plateau_without_an_evaluation():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    run = trainer(model, optimizer, scheduler=ReduceLROnPlateau(optimizer))
    with pytest.raises(ValueError, match="no val"):
        run.fit(cut(data(8), (4, 4)), epochs=1)
    run.fit(cut(data(8), (4, 4)), cut(data(4), (4,)), epochs=1)
    assert run.epoch == 1


def test_a_run_without_an_end():
    model = net()
    with pytest.raises(ValueError, match="epochs or max_steps"):
        trainer(model, SGD(model.parameters(), lr=0.1)).fit(cut(data(8), (4, 4)))
