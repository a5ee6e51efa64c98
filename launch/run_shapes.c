/* What a checkpoint has left of a recipe's tensor trains, on every rank. */
#include "launch/checkpoint.h"
#include "launch/run.h"

#include <stdlib.h>

static tt_status read_shapes(tt_run *run, const char *path, tt_error *error)
{
    if (!path[0]) {
        return TT_OK;
    }
    tt_training_state state;
    TT_TRY(tt_checkpoint_read_state(path, &state, error));
    run->shapes = (tt_layer_shapes){state.layers, state.layer_count};
    state.layers = NULL;
    tt_training_state_free(&state);
    return TT_OK;
}

tt_status tt_run_take_shapes(tt_run *run, const char *path, tt_error *error)
{
    const tt_world *world = &run->world;
    free(run->shapes.items);
    run->shapes = (tt_layer_shapes){0};
    tt_status status = world->rank == 0 ? read_shapes(run, path, error) : TT_OK;
    TT_TRY(tt_world_share(world, status, error));
    tt_world_broadcast(world, &run->shapes.count, sizeof run->shapes.count);
    if (run->shapes.count == 0) {
        return TT_OK;
    }
    size_t bytes = (size_t)run->shapes.count * sizeof *run->shapes.items;
    if (world->rank != 0) {
        run->shapes.items = malloc(bytes);
        status = run->shapes.items
                     ? TT_OK
                     : tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the table of layers");
    }
    TT_TRY(tt_world_agree(world, status, error));
    tt_world_broadcast(world, run->shapes.items, (int64_t)bytes);
    return TT_OK;
}
