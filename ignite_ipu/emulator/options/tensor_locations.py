"""Options about where tensors are kept while a model runs."""

from __future__ import annotations

from typing import Optional

from ignite_ipu.emulator.options.guarded import OptionsDict, checked


class TensorLocationSettings(OptionsDict):
    """Place of one kind of tensor, and its way there; what was not said is the back end's choice."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Keep tensors with fewer elements on the chip."""
        return self._with(minElementsForOffChip=checked("minElementsForOffChip", min_elements, int))

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Leave tensors with fewer elements whole in each replica."""
        name = "minElementsForReplicatedTensorSharding"
        return self._with(**{name: checked(name, min_elements, int)})

    def useOnChipStorage(self, use: Optional[bool] = True) -> TensorLocationSettings:
        """Keep the tensors on the chip; None leaves it to the back end again."""
        if use is None:
            self.checkIsFrozen("onChip")
            self.deleteIfExists("onChip")
            return self
        return self._flag("onChip", use)

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Give each replica a part of the tensor instead of all of it."""
        return self._flag("useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Load through the tiles set aside for transfers."""
        return self._flag("useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Store through the tiles set aside for transfers."""
        return self._flag("useIOTilesToStore", use)

    def _flag(self, name: str, value: bool) -> TensorLocationSettings:
        return self._with(**{name: int(checked(name, value, bool))})


class _TensorLocationOptions(OptionsDict):
    """`Options.TensorLocations`; keeps snapshots, so that editing a settings object later changes nothing."""

    def numIOTiles(self, num_tiles: int) -> _TensorLocationOptions:
        """Set tiles of each IPU aside for transfers.

        Raises:
            AssertionError: `num_tiles` is odd or not between 32 and 192.
        """
        if checked("numIOTiles", num_tiles, int) not in range(32, 193, 2):
            raise AssertionError(f"numIOTiles must be an even number between 32 and 192, got {num_tiles!r}.")
        return self._with(numIOTiles=num_tiles)

    def setActivationLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Say where activations are kept."""
        return self._location("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Say where weights are kept."""
        return self._location("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Say where the optimizer's state is kept."""
        return self._location("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Say where accumulated gradients are kept."""
        return self._location("location_accumulator", location)

    def _location(self, name: str, location: TensorLocationSettings) -> _TensorLocationOptions:
        if not isinstance(location, TensorLocationSettings):
            raise AssertionError(f"A location is a TensorLocationSettings, got {location!r}.")
        return self._with(**{name: location.toDict()})
