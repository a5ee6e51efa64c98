#include "launch/memory_hint.h"

static double mebibytes(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* "; held so far: ..."; `factors`: those of the tensor trains too. */
static void append_held(const tt_model *model, bool factors, tt_error *error)
{
    const tt_parameters *parameters = &model->parameters;
    size_t bytes = tt_floats(parameters->total);
    if (!parameters->values) {
        return;
    }
    tt_error_append(error, "; held so far: parameters %.1f MiB, gradients %.1f MiB",
                    mebibytes(bytes), mebibytes(bytes));
    if (parameters->first_moment) {
        tt_error_append(error, ", optimizer moments %.1f MiB", mebibytes(2 * bytes));
    }
    if (factors && model->trains.count > 0) {
        tt_error_append(error, ", tensor-train factors %.1f MiB",
                        mebibytes(tt_train_set_bytes(&model->trains)));
    }
}

/* Whether a rank says how large the trains of some map are. */
static bool has_rank(const tt_recipe *recipe)
{
    bool any = false;
    for (int kind = 0; kind < TT_RECIPE_MAP_COUNT; kind++) {
        any = any || recipe->tensor_train.maps[kind].form == TT_RECIPE_TENSOR_TRAIN;
    }
    return any;
}

tt_status tt_memory_hint_model(const tt_run *run, tt_error *error)
{
    if (error->status != TT_OUT_OF_MEMORY) {
        return error->status;
    }
    append_held(&run->model, false, error);
    const tt_recipe_model *model = &run->recipe.model;
    if (has_rank(&run->recipe)) {
        return tt_error_append(error,
                               "; a smaller model has room: lower tensor_train.rank or "
                               "model.layers (it is %lld)",
                               (long long)model->layers);
    }
    return tt_error_append(error,
                           "; a smaller model has room: set tensor_train.form: tensor_train, or "
                           "lower model.hidden_size (it is %lld) or model.layers (it is %lld)",
                           (long long)model->hidden_size, (long long)model->layers);
}

tt_status tt_memory_hint_step(const tt_run *run, int phase, int64_t micro_batch, tt_error *error)
{
    if (error->status != TT_OUT_OF_MEMORY) {
        return error->status;
    }
    append_held(&run->model, true, error);
    if (micro_batch > 1) {
        return tt_error_append(error, "; lower phases.%d.micro_batch (it is %lld)", phase,
                               (long long)micro_batch);
    }
    return tt_error_append(error,
                           "; one sequence at a time is too much: lower phases.%d.sequence_length "
                           "(it is %lld) or take a smaller model",
                           phase, (long long)run->recipe.phases[phase].sequence_length);
}
