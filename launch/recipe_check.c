/* What must hold between the fields of a recipe, once each is in its own range. */
#include "launch/recipe_schema.h"

#include <stdio.h>

typedef struct {
    int64_t size;
    const char *key; /* where the size comes from */
} tt_side;

static void map_sides(const tt_recipe_model *model, tt_recipe_map_kind kind, tt_side *input,
                      tt_side *output)
{
    const tt_side hidden = {model->hidden_size, "model.hidden_size"};
    const tt_side inner = {model->intermediate_size, "model.intermediate_size"};
    *input = kind == TT_RECIPE_OUTPUT ? inner : hidden;
    *output = kind == TT_RECIPE_INTERMEDIATE ? inner : hidden;
}

/* The product of mode sizes; INT64_MAX when it does not fit. */
static int64_t product(const int64_t *modes, uint64_t count)
{
    int64_t total = 1;
    for (uint64_t i = 0; i < count; i++) {
        if (__builtin_mul_overflow(total, modes[i], &total)) {
            return INT64_MAX;
        }
    }
    return total;
}

static tt_status check_modes(const int64_t *modes, uint64_t count, const tt_side *side,
                             const char *map, const char *key, tt_error *error)
{
    int64_t total = product(modes, count);
    if (count == 0 || total == side->size) {
        return TT_OK;
    }
    return tt_error_set(error, TT_INVALID_INPUT,
                        "tensor_train.%s.%s: expected mode sizes whose product is %lld (%s), found "
                        "a product of %lld",
                        map, key, (long long)side->size, side->key, (long long)total);
}

/* Each rank at most what the unfolding at its link allows; known once all modes are given. */
static tt_status check_ranks(const tt_recipe_map *map, const char *name, tt_error *error)
{
    uint64_t order = map->input_mode_count + map->output_mode_count;
    if (map->rank_count != order - 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.%s.ranks: expected %llu inner ranks for %llu modes, "
                            "found %llu",
                            name, (unsigned long long)order - 1, (unsigned long long)order,
                            (unsigned long long)map->rank_count);
    }
    int64_t modes[2 * TT_RECIPE_MODES];
    for (uint64_t i = 0; i < order; i++) {
        modes[i] = i < map->input_mode_count ? map->input_modes[i]
                                             : map->output_modes[i - map->input_mode_count];
    }
    for (uint64_t link = 1; link < order; link++) {
        int64_t left = product(modes, link), right = product(modes + link, order - link);
        int64_t limit = left < right ? left : right;
        if (map->ranks[link - 1] > limit) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "tensor_train.%s.ranks.%llu: expected at most %lld, which the "
                                "modes on its sides allow, found %lld",
                                name, (unsigned long long)link - 1, (long long)limit,
                                (long long)map->ranks[link - 1]);
        }
    }
    return TT_OK;
}

static tt_status check_map(const tt_recipe *recipe, tt_recipe_map_kind kind, tt_error *error)
{
    const tt_recipe_map *map = &recipe->tensor_train.maps[kind];
    const char *name = tt_recipe_map_name(kind);
    if (map->form == TT_RECIPE_DENSE) {
        return TT_OK;
    }
    tt_side input, output;
    map_sides(&recipe->model, kind, &input, &output);
    TT_TRY(
        check_modes(map->input_modes, map->input_mode_count, &input, name, "input_modes", error));
    TT_TRY(check_modes(map->output_modes, map->output_mode_count, &output, name, "output_modes",
                       error));
    if (map->order == 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.%s.order: expected 0 or at least 2, found 1", name);
    }
    if (map->rank_count == 0 && map->rank == 0 && map->compression == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.%s: a tensor train needs one of ranks, rank and "
                            "compression, found none",
                            name);
    }
    bool modes_known = map->input_mode_count > 0 && map->output_mode_count > 0;
    return map->rank_count > 0 && modes_known ? check_ranks(map, name, error) : TT_OK;
}

static tt_status check_embedding(const tt_recipe *recipe, tt_error *error)
{
    const tt_recipe_embedding *embedding = &recipe->tensor_train.embedding;
    if (embedding->form == TT_RECIPE_EMBEDDING_DENSE) {
        return TT_OK;
    }
    const tt_side hidden = {recipe->model.hidden_size, "model.hidden_size"};
    TT_TRY(check_modes(embedding->hidden_modes, embedding->hidden_mode_count, &hidden, "embedding",
                       "hidden_modes", error));
    if (embedding->hidden_mode_count != embedding->vocabulary_mode_count) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.embedding: expected as many hidden_modes as "
                            "vocabulary_modes, found %llu and %llu",
                            (unsigned long long)embedding->hidden_mode_count,
                            (unsigned long long)embedding->vocabulary_mode_count);
    }
    int64_t rows = product(embedding->vocabulary_modes, embedding->vocabulary_mode_count);
    if (rows > INT32_MAX) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.embedding.vocabulary_modes: expected mode sizes whose "
                            "product is at most %d, found a product of %s%lld",
                            INT32_MAX, rows == INT64_MAX ? "at least " : "", (long long)rows);
    }
    if (embedding->hidden_mode_count == 1 || embedding->order == 1) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.embedding: expected at least 2 cores, found 1");
    }
    if (embedding->rank_count == 0 && embedding->rank == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "tensor_train.embedding: a tensor-train matrix needs ranks or rank, "
                            "found neither");
    }
    return TT_OK;
}

static tt_status check_model(const tt_recipe_model *model, tt_error *error)
{
    if (model->hidden_size % model->heads != 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.heads: expected a divisor of model.hidden_size %lld, found %lld",
                            (long long)model->hidden_size, (long long)model->heads);
    }
    return TT_OK;
}

static tt_status check_phase(const tt_recipe *recipe, uint64_t number, tt_error *error)
{
    const tt_recipe_phase *phase = &recipe->phases[number];
    unsigned long long n = number;
    if (phase->sequence_length > recipe->model.max_positions) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "phases.%llu.sequence_length: expected at most model.max_positions "
                            "%lld, found %lld",
                            n, (long long)recipe->model.max_positions,
                            (long long)phase->sequence_length);
    }
    if (phase->max_predictions > phase->sequence_length) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "phases.%llu.max_predictions: expected at most its sequence_length "
                            "%lld, found %lld",
                            n, (long long)phase->sequence_length,
                            (long long)phase->max_predictions);
    }
    if (phase->micro_batch > phase->global_batch) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "phases.%llu.micro_batch: expected at most its global_batch %lld, "
                            "found %lld",
                            n, (long long)phase->global_batch, (long long)phase->micro_batch);
    }
    return TT_OK;
}

static tt_status check_task(const tt_recipe *recipe, tt_error *error)
{
    if (recipe->task.kind == TT_TASK_NONE) {
        return TT_OK;
    }
    if (recipe->data.tokenizer[0] == '\0') {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "data.tokenizer: expected a tokenizer, which a task needs, found none");
    }
    if (recipe->model.segment_types < 2) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "model.segment_types: expected at least 2, which a task of sentence "
                            "pairs needs, found %lld",
                            (long long)recipe->model.segment_types);
    }
    return TT_OK;
}

static tt_status check_precision(const tt_recipe *recipe, tt_error *error)
{
    if (recipe->device == TT_DEVICE_CPU && recipe->precision != TT_PRECISION_F32) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "precision: expected f32 with device cpu, found %s",
                            recipe->precision == TT_PRECISION_BF16 ? "bf16" : "tf32");
    }
    return TT_OK;
}

static bool has_tensor_trains(const tt_recipe *recipe)
{
    for (int i = 0; i < TT_RECIPE_MAP_COUNT; i++) {
        if (recipe->tensor_train.maps[i].form == TT_RECIPE_TENSOR_TRAIN) {
            return true;
        }
    }
    return recipe->tensor_train.embedding.form == TT_RECIPE_TENSOR_TRAIN_MATRIX;
}

static tt_status check_late_stage(const tt_recipe_stage *stage, unsigned long long n,
                                  tt_error *error)
{
    if (stage->target_loss == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "stages.%llu.target_loss: a late stage needs a loss above 0 to reach, "
                            "found 0 or none",
                            n);
    }
    if (stage->target_ratio > 0 && stage->target_parameters > 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "stages.%llu: expected target_ratio or target_parameters, found both",
                            n);
    }
    if (stage->target_ratio == 0 && stage->target_parameters == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "stages.%llu.target_ratio: a late stage needs a size to reach above 0, "
                            "which is that of a model with every map removed, found 0 or none",
                            n);
    }
    return TT_OK;
}

static tt_status check_stage(const tt_recipe *recipe, uint64_t number, tt_error *error)
{
    const tt_recipe_stage *stage = &recipe->stages[number];
    unsigned long long n = number;
    if (stage->steps == 0 && stage->epochs == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "stages.%llu: expected steps or epochs above 0, found a stage with no "
                            "steps",
                            n);
    }
    if (stage->steps > 0 && stage->epochs > 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "stages.%llu: expected steps or epochs, found both", n);
    }
    if (stage->kind == TT_RECIPE_LATE) {
        return check_late_stage(stage, n, error);
    }
    if (stage->target_loss > 0 || stage->target_ratio > 0 || stage->target_parameters > 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "stages.%llu: expected kind late for a stage with a target, found an "
                            "early one, which has none",
                            n);
    }
    return TT_OK;
}

static tt_status check_ranks_train(const tt_recipe *recipe, tt_error *error)
{
    if (!has_tensor_trains(recipe) &&
        (recipe->stage_count > 0 || recipe->rank.compaction_interval > 0)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: expected a recipe with tensor-train maps (tensor_train.form), "
                            "found dense maps only, which have no ranks",
                            recipe->stage_count > 0 ? "stages" : "rank.compaction_interval");
    }
    for (uint64_t i = 0; i < recipe->stage_count; i++) {
        TT_TRY(check_stage(recipe, i, error));
    }
    return TT_OK;
}

tt_status tt_recipe_check(const tt_recipe *recipe, tt_error *error)
{
    TT_TRY(tt_recipe_fields_check(tt_recipe_fields, recipe, "", error));
    TT_TRY(check_precision(recipe, error));
    TT_TRY(check_model(&recipe->model, error));
    TT_TRY(check_task(recipe, error));
    for (int i = 0; i < TT_RECIPE_MAP_COUNT; i++) {
        TT_TRY(check_map(recipe, (tt_recipe_map_kind)i, error));
    }
    TT_TRY(check_embedding(recipe, error));
    TT_TRY(check_ranks_train(recipe, error));
    if (recipe->phase_count == 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "phases: expected at least one phase, found none");
    }
    for (uint64_t i = 0; i < recipe->phase_count; i++) {
        TT_TRY(check_phase(recipe, i, error));
    }
    return TT_OK;
}
