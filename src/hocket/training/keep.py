"""A kept run: trains in a folder with a configuration, records, checkpoints and a summary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hocket.core.graph.host_calls import hosts
from hocket.core.program.algorithm import Algorithm
from hocket.errors import unknown
from hocket.report.loggers import About, Logger
from hocket.report.outcome import Outcome
from hocket.report.records import Records
from hocket.runtime.channels.host_arrays import from_host, host_spec
from hocket.runtime.channels.late import SAMPLE, renamed
from hocket.runtime.checkpoint import Checkpoint, Checkpoints
from hocket.runtime.distributed import SAMPLE_AGE, Split
from hocket.runtime.free.learner import fitting_samples
from hocket.runtime.host_calls.calls import PREFIX as HOST
from hocket.runtime.launch import check_folder
from hocket.system.signals import Abandoned, Deferred
from hocket.training.folder import (
    CONFIG,
    LOGS,
    agent_folders,
    as_planned,
    check_unchanged,
    checkpoints_of,
    clear_records,
    configuration,
    has_checkpoints,
    new_folder,
    old_folder,
    rows_before,
    write_json,
)
from hocket.training.load import Evaluator, state_specs
from hocket.training.loggers import Loggers, make_loggers
from hocket.training.loop import carry_out, count_iterations, first_key, make_executor, plan
from hocket.training.report import Report
from hocket.training.settings import Settings
from hocket.training.summary import note_reductions, write_summary

ROWS = 500
"""The approximate number of rows of metrics that a whole run writes."""
SAVE_SECONDS = 60.0
"""Seconds between checkpoints, unless `save_every` is set."""
NOTHING_YET: dict[str, Any] = {"seconds": {}, "best": -math.inf, "eval_means": [], "shares": {}}
"""The initial values of the data that a checkpoint holds besides the state."""


def train(
    algorithm: Algorithm,
    *,
    resume: bool = False,
    watch: Callable[[Outcome], None] | None = None,
    trace: Path | str | None = None,
    **settings: Any,
) -> Outcome:
    """Train, and keep the run in a folder, so that it can be resumed, loaded and plotted.

        hocket.train(PPO(env=make("CartPole-v1")), name="first", seed=1, eval_every=50_000)
        policy = hocket.load("runs/first").policy

    The keywords are the fields of `Settings`. Ctrl-C ends the run after saving it, and `resume`
    continues a run exactly where its last checkpoint left it. `watch` is called with the progress
    about every quarter of a second. `trace` names a file for a timeline of all instances, which
    https://ui.perfetto.dev can show; recording it slows the run down.
    """
    known = [f.name for f in fields(Settings)]
    for name in settings.keys() - known:
        raise ValueError(unknown("setting", name, known))
    return Experiment(algorithm, Settings(**settings), resume, watch, trace).train()


class Experiment:
    """One kept run, from its configuration to its summary."""

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        resume: bool = False,
        watch: Callable[[Outcome], None] | None = None,
        trace: Path | str | None = None,
        loggers: Mapping[str, Logger] | None = None,
    ) -> None:
        """`loggers` are added to those of the settings, but not recorded in the configuration."""
        self.started = time.perf_counter()
        self.settings, self.watch, self.trace = settings, watch, trace
        # Everything that can be refused is refused here, before anything is written.
        self.config = configuration(algorithm, settings)
        title = self.config["title"]
        old = old_folder(settings.runs, title, settings.name) if resume else None
        begun = old if old and has_checkpoints(old) else None
        self.loggers = {**make_loggers(settings.loggers), **(loggers or {})}
        self.plan = plan(
            algorithm, distribute=settings.distribute, launch=settings.launch,
            cluster=settings.cluster, ship=settings.ship, wait=settings.wait,
        )  # fmt: skip
        check_folder(self.plan.launch, settings.runs)
        self.algorithm = as_planned(algorithm, self.plan.graph.num_envs, begun)
        # Record the choice of a search, since a later search may choose something else.
        words = self.plan.words or settings.distribute
        self.config = configuration(self.algorithm, replace(settings, distribute=words))
        if begun:
            check_unchanged(begun, self.config)
        self.iterations = count_iterations(self.plan.iteration)
        self.seeds = settings.seeds if settings.seeds > 1 else None
        self.executor = make_executor(
            self.plan,
            self.iterations,
            self.seeds,
            record=trace is not None,
            lease=settings.lease,
        )
        self.resume = resume
        self.base = 0, 0
        """The iteration at which this plan began, and the environment steps made before it. Before
        a resume the run may have had another plan, with another number of steps per iteration."""
        self.evaluator = Evaluator(self.algorithm, settings.eval_episodes)
        self.folder = old or new_folder(settings.runs, title, settings.name)
        if isinstance(self.executor, Split):
            self.executor.crew.keep_logs(self.folder / LOGS)
        self.folders = agent_folders(self.folder, settings.seed, settings.seeds)
        self.planned = time.perf_counter() - self.started
        self.outcome = Outcome(
            self.folder, title, settings.seeds, self.steps(self.iterations),
            notes=list(self.plan.notes),
        )  # fmt: skip

    def train(self) -> Outcome:
        """Run to the end, or to the first Ctrl-C."""
        try:
            self._train()
        except OSError as error:
            raise OSError(
                f"{self.folder} could not be written: {error}. Fix the cause, then continue with "
                f"--resume."
            ) from error
        except Exception as error:
            if has_checkpoints(self.folder):
                error.add_note(f"{self.folder} has checkpoints: --resume continues from the last.")
            raise
        return self.outcome

    def _train(self) -> None:
        with Loggers(self.loggers) as loggers:
            checkpoints = checkpoints_of(self.folder, self.settings.keep)
            try:
                start = self._start(checkpoints)
                if start is None or start.iteration < self.iterations:
                    write_json(self.folder / CONFIG, self.config)
                loggers.begin(self._about(start))
                _Keeper(self, checkpoints, loggers, start).keep_all()
            finally:
                checkpoints.close()
                self.executor.close()
                self._write_trace()
            if self.trace is not None and Path(self.trace).exists():
                loggers.media(Path(self.trace))
            loggers.end(write_summary(self.outcome, self.settings.seed))

    def _about(self, start: Checkpoint | None) -> About:
        run, last_step = self.outcome, self.steps(start.iteration) if start else 0
        return About(run.title, self.folder, self.folders, self.config, run, last_step)

    def _write_trace(self) -> None:
        timeline = self.executor.timeline()
        if self.trace is not None and timeline is not None:
            timeline.save(self.trace)

    def _start(self, checkpoints: Checkpoints) -> Checkpoint | None:
        if not self.resume:
            return None
        if not checkpoints.iterations():
            why = "; ".join(checkpoints.half_written()) or "no checkpoint was written yet"
            self.outcome.notes.append(f"{why}, so the run starts from the beginning")
            checkpoints.refuse_after(0)
            clear_records(self.folder)
            return None
        last = checkpoints.latest(state_specs(self.algorithm, self.seeds))
        last = replace(last, late=renamed(self.plan, last.late))
        checkpoints.refuse_after(last.iteration)
        steps = last.about.get("env_steps", last.iteration * self.plan.graph.env_steps)
        # This plan may make more or fewer steps in an iteration than the plan of the checkpoint.
        self.base = last.iteration, steps
        rest = (self.algorithm.env_steps - steps) / self.plan.iteration.env_steps
        self.iterations = last.iteration + max(0, math.ceil(rest))
        start = replace(last, late=self._late(last))
        self.outcome.notes += self._notes(last, start.late)
        return start

    def _notes(self, last: Checkpoint, late: Mapping[str, Any]) -> Iterator[str]:
        """Yield notes for the user about a resume from the checkpoint `last`.

        `late` holds the part of `last.late` that fits this plan.
        """
        yield from (f"{why}: using the one before it" for why in last.refused)
        yield f"resumed after {self.steps(last.iteration):,} steps"
        if not late.keys() >= self.executor.late_specs().keys():
            yield "the checkpoint has no values for this plan's late channels: they start empty"
        lost = [name for name in last.late if name.startswith(SAMPLE) and name not in late]
        if lost:
            count = sum(name.endswith("-age") for name in lost)
            yield f"{count} samples that were on their way do not fit this plan: they are dropped"
        if not any(name.startswith(HOST) for name in late):
            for host in hosts(self.plan.graph):
                yield f"{host.name} cannot be saved: its episodes ended there, truncated"

    def _late(self, last: Checkpoint) -> dict[str, Any]:
        """Return the values that a checkpoint has besides the state, if this plan can use them.

        Every plan can use the saved environments of the host. Samples that nobody has learned from
        yet are used all together or not at all. So are messages in late channels, because their
        names depend on the plan.
        """
        specs = self.executor.late_specs()
        kept = {name: x for name, x in last.late.items() if name.startswith(HOST)}
        kept |= fitting_samples(self.plan, last.late)
        others = {k: x for k, x in last.late.items() if not k.startswith((HOST, SAMPLE))}
        saved = {name: (x.shape, x.dtype) for name, x in others.items()}
        if saved != {name: host_spec(spec) for name, spec in specs.items()}:
            return kept
        return {**{name: from_host(others[name], spec) for name, spec in specs.items()}, **kept}

    def steps(self, iteration: int) -> int:
        """Return the environment steps that each agent has made by the end of an iteration."""
        start, steps = self.base
        return steps + (iteration - start) * self.plan.iteration.env_steps

    def period(self, env_steps: int | None) -> int | None:
        """Convert environment steps to iterations, rounded up; None stays None."""
        return env_steps and math.ceil(env_steps / self.plan.iteration.env_steps)


class _Keeper:
    """Turns the reports of a run into metrics rows and checkpoints, and updates its `Outcome`."""

    def __init__(
        self, of: Experiment, checkpoints: Checkpoints, loggers: Loggers, start: Checkpoint | None
    ) -> None:
        self.of, self.checkpoints, self.start = of, checkpoints, start
        self.outcome = of.outcome
        about = start.about if start else NOTHING_YET
        self.before: dict[str, float] = about["seconds"]
        """The seconds spent on each activity before this resume."""
        self.best: float = about["best"]
        """The best mean return of an evaluation so far."""
        self.spent = {"evaluate": 0.0, "save": 0.0}
        self.saved_at = time.perf_counter()
        self.saved = self.evaluated = start.iteration if start else 0
        """The iterations at which the last checkpoint and the last evaluation were made."""
        self.outcome.env_steps = steps = of.steps(self.saved)
        self.records = Records(
            of.seeds,
            lambda step, row, agent: loggers.row(step, row, of.settings.seed + agent),
            every=max(1, of.iterations // ROWS),
            start_at=self.saved,
            before=rows_before(of.folders.values(), steps),
        )
        self.outcome.return_means = self.records.return_means
        self.outcome.eval_means, self.outcome.shares = about["eval_means"], about["shares"]
        self.outcome.seconds = dict(self.before)

    def keep_all(self) -> None:
        of, report = self.of, None
        eval_period, save_period = map(of.period, (of.settings.eval_every, of.settings.save_every))
        reports = carry_out(
            of.executor, of.iterations, first_key(of.settings.seed, of.seeds), profile=True,
            start_from=self.start and self.start.state, start_at=self.saved,
            late=self.start and self.start.late,
            pauses=[p for p in (eval_period, save_period) if p],
        )  # fmt: skip
        try:
            for report in reports:
                # Defer a Ctrl-C, so that no row, evaluation or checkpoint is cut short.
                with Deferred() as interrupt:
                    self._take(report)
                    last = report.iteration == of.iterations
                    if eval_period and (last or report.iteration % eval_period == 0):
                        self._evaluate(report)
                    overdue = time.perf_counter() - self.saved_at > SAVE_SECONDS
                    if report.iteration % save_period == 0 if save_period else overdue:
                        self._save(report)
                    self._update(report)
                if interrupt.seen:
                    raise KeyboardInterrupt
        except Abandoned:  # after a second Ctrl-C there may be no consistent state to save
            raise
        except KeyboardInterrupt:
            if report is None:
                raise
            self.outcome.interrupted = True
            self.outcome.notes.append("interrupted; --resume continues it")
        if report is None:
            self.outcome.notes.append("nothing is left to do: the run is finished")
        else:
            self._save(report)
            with self._timed("save"):
                self.checkpoints.wait()
        self._update(report)

    def _take(self, report: Report) -> None:
        self.records.add(report.metrics, self.of.steps, self._elapsed())
        self.outcome.env_steps = self.of.steps(report.iteration)
        self.outcome.return_means = self.records.return_means
        self.outcome.shares = report.shares or self.outcome.shares
        self.outcome.places = list(report.places)
        note_reductions(self.outcome, report.executor.reductions())
        if SAMPLE_AGE in report.metrics:
            for age in report.metrics[SAMPLE_AGE].ravel():
                self.outcome.ages += [0] * (1 + age - len(self.outcome.ages))
                self.outcome.ages[age] += 1

    def _evaluate(self, report: Report) -> None:
        with self._timed("evaluate"):
            means = self.of.evaluator.means(report.state, self.of.seeds)
            self.outcome.eval_means, self.evaluated = means, report.iteration
            more = [{"eval_return_mean": mean} for mean in means]
            self.records.flush(self.of.steps(report.iteration), self._elapsed(), more)
        if self.outcome.eval_mean > self.best:
            self.best = self.outcome.eval_mean
            self._save(report)

    def _save(self, report: Report) -> None:
        if self.saved == report.iteration:
            return
        steps, outcome = self.of.steps(report.iteration), self.outcome
        with self._timed("save"):
            self.records.flush(steps, self._elapsed())
            score = outcome.return_mean
            if self.of.settings.eval_every:  # the best checkpoint is the best evaluated one
                score = outcome.eval_mean if self.evaluated == report.iteration else math.nan
            about = {
                "env_steps": steps, "seconds": self._seconds(report), "shares": outcome.shares,
                "eval_means": outcome.eval_means, "best": self.best,
            }  # fmt: skip
            late = report.executor.late()
            self.checkpoints.save(
                report.iteration, report.state, score=score, about=about, late=late
            )
        self.saved, self.saved_at = report.iteration, time.perf_counter()

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.spent[what] += time.perf_counter() - start

    def _update(self, report: Report | None) -> None:
        if report is not None:
            self.outcome.seconds = self._seconds(report)
        if self.of.watch:
            self.of.watch(self.outcome)

    def _seconds(self, report: Report) -> dict[str, float]:
        """Return the seconds spent on each activity, including those before a resume."""
        timings = report.timings
        now = {
            "trace": self.of.planned + timings.trace,
            "compile": timings.compile,
            "run": timings.run,
            "profile": timings.profile,
            **self.spent,
        }
        now["other"] = max(0.0, time.perf_counter() - self.of.started - sum(now.values()))
        return {name: value + self.before.get(name, 0.0) for name, value in now.items()}

    def _elapsed(self) -> float:
        return sum(self.before.values()) + time.perf_counter() - self.of.started
