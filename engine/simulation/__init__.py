"""Simulation: what an engine would do, and how long it would take, without computing it."""

from engine.simulation.architecture import Architecture
from engine.simulation.costs import FittedCost, StepCost, fit, fit_most
from engine.simulation.devices import DeviceProfile
from engine.simulation.requests import Drafts, SimulatedRequest
from engine.simulation.roofline import RooflineCost
from engine.simulation.run import Simulated, pass_through, simulate
from engine.simulation.simulator import Simulator
from engine.work import Work

__all__ = [
    "Architecture",
    "DeviceProfile",
    "Drafts",
    "FittedCost",
    "RooflineCost",
    "Simulated",
    "SimulatedRequest",
    "Simulator",
    "StepCost",
    "Work",
    "fit",
    "fit_most",
    "pass_through",
    "simulate",
]
