"""Simulation: what an engine would do, and how long it would take, without computing it."""

from engine.simulation.costs import FittedCost, StepCost, fit
from engine.simulation.requests import Drafts, SimulatedRequest
from engine.simulation.simulator import Simulated, Simulator, simulate
from engine.simulation.work import Work

__all__ = ["Drafts", "FittedCost", "Simulated", "SimulatedRequest", "Simulator", "StepCost", "Work", "fit", "simulate"]
