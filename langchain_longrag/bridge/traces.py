"""Runs of LangChain's callbacks for what is not a runnable: the layers of a build."""

from __future__ import annotations

from typing import Any, cast

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForChainRun,
    CallbackManager,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    patch_config,
)

from longrag.indexing.tree.events import LayerPlan


class LayerRuns:
    """One run per layer, below the run of the build; calls of models are below their layer.

    Each method has an async one, since the framework has managers of both kinds.
    """

    def __init__(self, config: RunnableConfig) -> None:
        self._config = config
        self._run: CallbackManagerForChainRun | AsyncCallbackManagerForChainRun | None = None
        self.config = config
        """The config for the calls of the layer at hand."""

    def begin_layer(self, layer: LayerPlan) -> None:
        """End the run of a layer and begin that of the next one."""
        self.end()
        manager: CallbackManager = get_callback_manager_for_config(self._config)
        self._enter(manager.on_chain_start(None, _describe(layer), name=_name(layer)))

    async def abegin_layer(self, layer: LayerPlan) -> None:
        """Begin a layer as ``begin_layer`` does."""
        await self.aend()
        manager: AsyncCallbackManager = get_async_callback_manager_for_config(self._config)
        self._enter(await manager.on_chain_start(None, _describe(layer), name=_name(layer)))

    def end(self, error: BaseException | None = None) -> None:
        """End the run of the last layer."""
        run = cast("CallbackManagerForChainRun | None", self._leave())
        if run is not None and error is not None:
            run.on_chain_error(error)
        elif run is not None:
            run.on_chain_end({})

    async def aend(self, error: BaseException | None = None) -> None:
        """End the run of the last layer."""
        run = cast("AsyncCallbackManagerForChainRun | None", self._leave())
        if run is not None and error is not None:
            await run.on_chain_error(error)
        elif run is not None:
            await run.on_chain_end({})

    def _enter(self, run: CallbackManagerForChainRun | AsyncCallbackManagerForChainRun) -> None:
        self._run = run
        self.config = patch_config(self._config, callbacks=run.get_child())

    def _leave(self) -> CallbackManagerForChainRun | AsyncCallbackManagerForChainRun | None:
        run, self._run, self.config = self._run, None, self._config
        return run


def _name(layer: LayerPlan) -> str:
    return f"layer {layer.level}"


def _describe(layer: LayerPlan) -> dict[str, Any]:
    return {"nodes": layer.nodes, "missing": layer.missing}
