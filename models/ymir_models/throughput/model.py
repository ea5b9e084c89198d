"""Step time from batch, GPUs and nodes; numpy alone.

The form is that of Pollux (OSDI 2021, section 3.2; AdaptDL's throughput model):

    compute(b)  = a + c b                                    b samples on one GPU
    network(n)  = l0 + l1 (n - 2)   on one node, n GPUs
                = m0 + m1 (n - 2)   on several nodes
    step        = (compute^g + network^g)^(1/g)              g = 1: no overlap; g >> 1: full overlap

times a residual correction exp(r(b) + s(n)), piecewise linear in log b and log n, constant outside.
An optimiser step with k accumulation passes takes step + k compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ymir_models.artefact import Fields

__all__ = ["StepModel", "accumulation"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def accumulation(batch: IntArray, gpus: IntArray, smallest: int, largest: int) -> tuple[IntArray, IntArray]:
    """Return local batch and accumulation passes of global batches, as Titan's job model divides them.

    ``b = ceil(T/n)``, ``k = ceil(b/bmax) - 1`` (at least 1 if one GPU cannot hold the batch), the local
    batch is ``ceil(b/(k+1))``, capped at ``floor(T/(n (k+1)))``, at least ``smallest``.
    """
    per_gpu = -(-batch // gpus)
    passes = -(-per_gpu // largest) - 1
    passes = np.where((gpus == 1) & (batch > largest), np.maximum(passes, 1), passes)
    local = -(-per_gpu // (passes + 1))
    local = np.maximum(np.minimum(local, batch // (gpus * (passes + 1))), smallest)
    return local, passes


def _whole(values: ArrayLike) -> IntArray:
    return np.atleast_1d(np.asarray(values, dtype=np.int64))


@dataclass(frozen=True)
class StepModel:
    """Fitted step time of one (foundation model, PEFT type, configuration) on one GPU type.

    Attributes
    ----------
    foundation_model, peft_type, config, gpu_type
        What it is for; an answer is given for exactly these.
    node_gpus : int
        GPUs of a node where it was measured: a count is packed on the fewest nodes.
    smallest, largest : int
        Local batches measured; larger global batches accumulate, smaller ones are not answered.
    most_gpus, most_nodes : int
        Largest counts measured; more than twice that many GPUs are not answered.
    theta : float64[7]
        a, c, l0, l1, m0, m1 in seconds, and g.
    batch_knots, batch_correction, count_knots, count_correction : float64[.]
        Logarithms of local batch and GPU count, and the additive correction of log step there.
    memory : float64[2]
        GiB per GPU at local batch 0 and per sample; NaN where unknown.
    radius : float64[2, 2]
        Half widths of log step: rows inside and beyond the measured counts, columns 80 and 95 %.
    """

    foundation_model: str
    peft_type: str | None
    config: str
    gpu_type: str
    node_gpus: int
    smallest: int
    largest: int
    most_gpus: int
    most_nodes: int
    theta: FloatArray
    batch_knots: FloatArray
    batch_correction: FloatArray
    count_knots: FloatArray
    count_correction: FloatArray
    memory: FloatArray
    radius: FloatArray

    def compute_s(self, local: ArrayLike) -> FloatArray:
        """Return seconds of one forward and backward pass of `local` samples on one GPU."""
        b = np.asarray(local, dtype=np.float64)
        pure: FloatArray = self.theta[0] + self.theta[1] * b
        return pure * np.exp(self._batch_factor(b))

    def _batch_factor(self, b: FloatArray) -> FloatArray:
        if not len(self.batch_knots):
            return np.zeros_like(b)
        return np.interp(np.log(b), self.batch_knots, self.batch_correction)

    def step_s(self, local: ArrayLike, gpus: ArrayLike, nodes: ArrayLike) -> FloatArray:
        """Return seconds of one optimiser step without accumulation, synchronisation included.

        Parameters
        ----------
        local : float[k]
            Samples on each GPU.
        gpus, nodes : int[k]
        """
        b = np.asarray(local, dtype=np.float64)
        n = np.asarray(gpus, dtype=np.float64)
        step = pure_step(self.theta, b, n, np.asarray(nodes))
        factor = self._batch_factor(b)
        if len(self.count_knots):
            factor = factor + np.interp(np.log(n), self.count_knots, self.count_correction)
        return step * np.exp(factor)

    def samples_per_s(self, batch: ArrayLike, gpus: ArrayLike, nodes: ArrayLike | None = None) -> FloatArray:
        """Return samples/s at global batches; NaN outside what the model may answer.

        Parameters
        ----------
        batch, gpus : int[k]
        nodes : int[k], optional
            Default: the fewest nodes of ``node_gpus`` GPUs.
        """
        total, n = _whole(batch), _whole(gpus)
        on = -(-n // self.node_gpus) if nodes is None else np.asarray(nodes, np.int64)
        valid = (n >= 1) & (n <= 2 * self.most_gpus) & (self.smallest * n <= total)
        # a network that no row went through is not guessed
        valid &= (n == 1) | (self.most_gpus > 1)
        valid &= (on == 1) | (self.most_nodes > 1)
        safe = np.where(valid, n, 1)
        local, passes = accumulation(np.maximum(total, self.smallest), safe, self.smallest, self.largest)
        seconds = self.step_s(local, safe, on) + passes * self.compute_s(local)
        return np.where(valid, safe * local * (passes + 1) / seconds, np.nan)

    def memory_gib(self, batch: ArrayLike, gpus: ArrayLike) -> FloatArray:
        """Return GiB per GPU at global batches; NaN where unknown."""
        total, n = _whole(batch), _whole(gpus)
        local, _ = accumulation(np.maximum(total, self.smallest), n, self.smallest, self.largest)
        result: FloatArray = self.memory[0] + self.memory[1] * local
        return result

    def interval(
        self, rate: ArrayLike, gpus: ArrayLike, nodes: ArrayLike | None = None, level: int = 0
    ) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper limits around predicted samples/s (or seconds).

        Parameters
        ----------
        rate : float[k]
        gpus : int[k]
        nodes : int[k], optional
            Default: the fewest nodes.
        level : int
            0 for 80 %, 1 for 95 %.
        """
        n = _whole(gpus)
        on = -(-n // self.node_gpus) if nodes is None else _whole(nodes)
        beyond = ((n > self.most_gpus) | (on > self.most_nodes)).astype(np.int64)
        factor = np.exp(self.radius[beyond, level])
        r = np.asarray(rate, dtype=np.float64)
        return r / factor, r * factor

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as they are written to an artefact."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_fields(cls, fields: Fields) -> StepModel:
        """Read the parameters back.

        Raises
        ------
        InputError
            If one is missing or of the wrong kind.
        """
        return cls(
            foundation_model=fields.text("foundation_model"),
            peft_type=fields.optional_text("peft_type"),
            config=fields.text("config"),
            gpu_type=fields.text("gpu_type"),
            node_gpus=fields.count("node_gpus"),
            smallest=fields.count("smallest"),
            largest=fields.count("largest"),
            most_gpus=fields.count("most_gpus"),
            most_nodes=fields.count("most_nodes"),
            theta=fields.array("theta", 7),
            batch_knots=fields.array("batch_knots"),
            batch_correction=fields.array("batch_correction"),
            count_knots=fields.array("count_knots"),
            count_correction=fields.array("count_correction"),
            memory=fields.array("memory", 2),
            radius=fields.array("radius", 2, 2),
        )


def pure_step(theta: FloatArray, local: FloatArray, gpus: FloatArray, nodes: NDArray[Any]) -> FloatArray:
    """Return the step seconds of the physical model without correction."""
    a, c, l0, l1, m0, m1, g = theta
    compute = a + c * local
    extra = np.maximum(gpus - 2, 0.0)
    network = np.where(nodes > 1, m0 + m1 * extra, l0 + l1 * extra)
    network = np.where(gpus > 1, network, 0.0)
    # the larger of the two is taken out of the power so that it cannot overflow
    large = np.maximum(compute, network)
    small = np.minimum(compute, network)
    step: FloatArray = large * (1.0 + (small / large) ** g) ** (1.0 / g)
    return step
