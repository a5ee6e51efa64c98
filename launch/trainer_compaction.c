/* Ranks that shrink while a run goes on: the trainer's side of models/compaction.h. */
#include "launch/trainer.h"

#include "models/compaction.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

tt_status tt_trainer_list_layers(tt_trainer *trainer, tt_error *error)
{
    tt_layer_shapes shapes;
    TT_TRY(tt_model_shapes(&trainer->run->model, &shapes, error));
    free(trainer->state.layers);
    trainer->state.layers = shapes.items;
    trainer->state.layer_count = shapes.count;
    return TT_OK;
}

/* --- what metrics.jsonl is told --- */

static json_t *ranks_json(const tt_training_state *state)
{
    json_t *ranks = json_object();
    for (int i = 0; i < state->layer_count; i++) {
        const tt_train_shape *shape = &state->layers[i].shape;
        json_t *list = json_array();
        for (int k = 0; k <= shape->order; k++) {
            json_array_append_new(list, json_integer(shape->ranks[k]));
        }
        json_object_set_new(ranks, state->layers[i].name, list);
    }
    return ranks;
}

static tt_status write_ranks(tt_trainer *trainer, int64_t step, tt_error *error)
{
    const tt_training_state *state = &trainer->state;
    json_int_t parameters = tt_parameters_size(&trainer->run->model.parameters);
    json_t *line = json_pack("{s:I, s:{s:I, s:o}}", "step", (json_int_t)step, "compaction",
                             "parameters", parameters, "ranks", ranks_json(state));
    char *text = line ? json_dumps(line, JSON_PRESERVE_ORDER) : NULL;
    json_decref(line);
    size_t length = text ? strlen(text) : 0;
    char *ended = text ? realloc(text, length + 2) : NULL;
    if (!ended) {
        free(text);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory for the ranks of all layers");
    }
    memcpy(ended + length, "\n", 2);
    tt_status status = tt_metrics_write_line(trainer->metrics, ended, length + 1, error);
    free(ended);
    return status;
}

tt_status tt_trainer_note_ranks(tt_trainer *trainer, tt_error *error)
{
    struct stat file;
    bool empty = stat(trainer->metrics_path, &file) == 0 && file.st_size == 0;
    return empty && trainer->state.layer_count > 0
               ? write_ranks(trainer, trainer->first_step, error)
               : TT_OK;
}

/* --- compaction --- */

bool tt_trainer_compacts(const tt_trainer *trainer)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    const tt_training_state *state = &trainer->state;
    int64_t interval = recipe->rank.compaction_interval;
    bool ends = state->phase + 1 == (int64_t)recipe->phase_count &&
                state->phase_step == recipe->phases[state->phase].steps;
    if (trainer->run->model.trains.count == 0) {
        return false;
    }
    return (interval > 0 && state->step % interval == 0) ||
           (ends && (interval > 0 || recipe->stage_count > 0));
}

/* Ranks come from values, which are the same on all ranks of the run, or else all is lost. */
static tt_status check_agreement(const tt_trainer *trainer, const tt_layer_shapes *shapes,
                                 tt_error *error)
{
    uint64_t hash = 0;
    for (int i = 0; i < shapes->count; i++) {
        const tt_train_shape *shape = &shapes->items[i].shape;
        hash = XXH64(shape->ranks, ((size_t)shape->order + 1) * sizeof *shape->ranks, hash);
    }
    return tt_world_same(&trainer->run->world, "the ranks that compaction leaves", hash, error);
}

static int removed_count(const tt_training_state *state)
{
    int count = 0;
    for (int i = 0; i < state->layer_count; i++) {
        count += tt_train_is_removed(&state->layers[i].shape);
    }
    return count;
}

static tt_status note_compaction(tt_trainer *trainer, int64_t before, tt_error *error)
{
    const tt_training_state *state = &trainer->state;
    tt_status status = TT_OK;
    if (trainer->run->world.rank == 0) {
        tt_progress_end(&trainer->progress);
        fprintf(stderr,
                "compaction after step %lld: %lld parameters, %lld before; %d of %d tensor trains "
                "removed\n",
                (long long)state->step,
                (long long)tt_parameters_size(&trainer->run->model.parameters), (long long)before,
                removed_count(state), state->layer_count);
        status = write_ranks(trainer, state->step, error);
    }
    return tt_world_share(&trainer->run->world, status, error);
}

static tt_status cut(tt_trainer *trainer, tt_compaction *compaction, tt_error *error)
{
    tt_run *run = trainer->run;
    int64_t before = tt_parameters_size(&run->model.parameters);
    trainer->state.updates = tt_optimizer_updates(trainer->optimizer);
    tt_step_destroy(&trainer->step);
    tt_optimizer_destroy(&trainer->optimizer);
    TT_TRY(tt_world_agree(&run->world, tt_compaction_apply(compaction, &run->model, error), error));
    TT_TRY(tt_world_agree(&run->world, tt_trainer_list_layers(trainer, error), error));
    TT_TRY(tt_trainer_create_step(trainer, error));
    return note_compaction(trainer, before, error);
}

tt_status tt_trainer_compact(tt_trainer *trainer, tt_error *error)
{
    const tt_run *run = trainer->run;
    tt_compaction *compaction;
    tt_watchdog_note(trainer->watchdog, "cutting zero slices out of the model");
    tt_status status = tt_compaction_find(&run->model, &compaction, error);
    status = tt_world_agree(&run->world, status, error);
    if (status == TT_OK) {
        status = check_agreement(trainer, tt_compaction_shapes(compaction), error);
    }
    if (status == TT_OK && tt_compaction_cuts(compaction)) {
        status = cut(trainer, compaction, error);
    }
    tt_compaction_destroy(&compaction);
    return status;
}
