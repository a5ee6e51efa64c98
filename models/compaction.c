#include "models/compaction.h"

#include "models/encoder_block.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What stays of one train: the entries of each inner link, link k at k - 1. */
typedef struct {
    int32_t *kept[TT_MAX_ORDER];
    int64_t kept_count[TT_MAX_ORDER];
    bool removed;
} train_cut;

/* Of two maps in a row, the first gives its bias alone and the second lives: the second's bias
 * takes up what it makes of that. */
typedef struct {
    const tt_linear *first, *second;
    bool gelu; /* between the two */
} bias_fold;

struct tt_compaction {
    const tt_model *model;
    train_cut *trains; /* as in the model's set */
    int train_count;
    bool *dense_removed; /* by place in the list of maps */
    const tt_linear **maps;
    int map_count;
    bias_fold *folds;
    int fold_count;
    tt_layer_shapes shapes;
    bool cuts;
};

/* --- what can go ----------------------------------------------------------------------------- */

static tt_status no_memory(tt_error *error)
{
    tt_error_set(error, TT_OUT_OF_MEMORY, "no memory to cut zero slices out of the model");
    return TT_OUT_OF_MEMORY;
}

/* Lists the entries of a link that count. */
static tt_status find_kept(const tt_model *model, const tt_train *train, int link, train_cut *cut,
                           tt_error *error)
{
    tt_device *device = model->parameters.device;
    int64_t rank = train->shape.ranks[link];
    float *diagonal = malloc((size_t)rank * sizeof *diagonal);
    int32_t *kept = malloc((size_t)rank * sizeof *kept);
    cut->kept[link - 1] = kept;
    if (!diagonal || !kept) {
        free(diagonal);
        return no_memory(error);
    }
    device->copy_out(device, diagonal,
                     tt_parameters_value(&model->parameters, train->diagonals[link - 1]),
                     tt_floats(rank));
    device->synchronize(device);
    for (int64_t j = 0; j < rank; j++) {
        if (diagonal[j] > model->trains.threshold) {
            kept[cut->kept_count[link - 1]++] = (int32_t)j;
        }
    }
    cut->removed = cut->removed || cut->kept_count[link - 1] == 0;
    free(diagonal);
    return TT_OK;
}

static int map_number(const tt_compaction *compaction, const tt_linear *map)
{
    int i = 0;
    while (compaction->maps[i] != map) {
        i++;
    }
    return i;
}

static bool is_gone(const tt_compaction *compaction, const tt_linear *map)
{
    if (map->form == TT_TENSOR_TRAIN) {
        return compaction->trains[map->train].removed;
    }
    return map->form == TT_REMOVED || compaction->dense_removed[map_number(compaction, map)];
}

static void remove_map(tt_compaction *compaction, const tt_linear *map)
{
    if (map->form == TT_TENSOR_TRAIN) {
        compaction->trains[map->train].removed = true;
    } else if (map->form == TT_DENSE) {
        compaction->dense_removed[map_number(compaction, map)] = true;
    }
}

static void find_fold(tt_compaction *compaction, const tt_linear *first, const tt_linear *second,
                      bool gelu)
{
    if (is_gone(compaction, first) && !is_gone(compaction, second)) {
        compaction->folds[compaction->fold_count++] = (bias_fold){first, second, gelu};
    }
}

static bool serves_nothing(const tt_compaction *compaction, const tt_encoder_block *block,
                           const tt_linear *map)
{
    const tt_linear *needs[TT_MOST_NEEDS];
    int count = tt_block_needs(block, map, needs);
    bool gone = false;
    for (int i = 0; i < count; i++) {
        gone = gone || is_gone(compaction, needs[i]);
    }
    return gone;
}

static void look_at_block(tt_compaction *compaction, const tt_encoder_block *block)
{
    bool goes[TT_BLOCK_MAPS];
    find_fold(compaction, &block->value, &block->attention_output, false);
    find_fold(compaction, &block->intermediate, &block->output, true);
    for (int i = 0; i < TT_BLOCK_MAPS; i++) {
        goes[i] = serves_nothing(compaction, block, tt_block_map(block, i));
    }
    for (int i = 0; i < TT_BLOCK_MAPS; i++) {
        if (goes[i]) {
            remove_map(compaction, tt_block_map(block, i));
        }
    }
}

/* A train's shape afterwards. */
static tt_train_shape shape_after(const tt_train *train, const train_cut *cut)
{
    tt_train_shape shape = train->shape;
    for (int k = 1; k < shape.order; k++) {
        shape.ranks[k] = cut->removed ? 0 : cut->kept_count[k - 1];
    }
    return shape;
}

static void add_shape(tt_layer_shapes *shapes, const char *name, const tt_train_shape *shape)
{
    tt_layer_shape *item = &shapes->items[shapes->count++];
    snprintf(item->name, sizeof item->name, "%s", name);
    item->shape = *shape;
}

/* A dense map that goes is in the table as a train of two cores without a rank between them. */
static void add_dense_map(tt_layer_shapes *shapes, const tt_linear *map)
{
    char name[128];
    tt_train_shape shape = {
        .order = 2, .input_order = 1, .modes = {map->inputs, map->outputs}, .ranks = {1, 0, 1}};
    tt_linear_name(map, name, sizeof name);
    add_shape(shapes, name, &shape);
}

/* The number of the train of that name; -1: it is removed already. */
static int train_number(const tt_model *model, const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < model->trains.count; i++) {
        const char *core = model->parameters.items[model->trains.trains[i].cores[0]].name;
        if (strncmp(core, name, length) == 0 && strcmp(core + length, ".core_1") == 0) {
            return i;
        }
    }
    return -1;
}

/* The table of shapes, and whether it says anything new. */
static tt_status list_shapes(tt_compaction *compaction, tt_error *error)
{
    const tt_model *model = compaction->model;
    tt_layer_shapes before;
    TT_TRY(tt_model_shapes(model, &before, error));
    tt_layer_shapes *after = &compaction->shapes;
    after->items =
        calloc((size_t)before.count + (size_t)compaction->map_count + 1, sizeof *after->items);
    if (!after->items) {
        free(before.items);
        return no_memory(error);
    }
    for (int i = 0; i < before.count; i++) {
        tt_train_shape shape = before.items[i].shape;
        int number = train_number(model, before.items[i].name);
        if (number >= 0) {
            shape = shape_after(&model->trains.trains[number], &compaction->trains[number]);
        }
        for (int k = 1; k < shape.order; k++) {
            compaction->cuts = compaction->cuts || shape.ranks[k] != before.items[i].shape.ranks[k];
        }
        add_shape(after, before.items[i].name, &shape);
    }
    free(before.items);
    for (int i = 0; i < compaction->map_count; i++) {
        if (compaction->dense_removed[i]) {
            compaction->cuts = true;
            add_dense_map(after, compaction->maps[i]);
        }
    }
    return TT_OK;
}

static tt_status find(tt_compaction *compaction, tt_error *error)
{
    const tt_model *model = compaction->model;
    for (int i = 0; i < compaction->train_count; i++) {
        const tt_train *train = &model->trains.trains[i];
        for (int k = 1; k < train->shape.order; k++) {
            TT_TRY(find_kept(model, train, k, &compaction->trains[i], error));
        }
    }
    for (int layer = 0; layer < model->configuration.layers; layer++) {
        look_at_block(compaction, &model->encoder.blocks[layer]);
    }
    return list_shapes(compaction, error);
}

tt_status tt_compaction_find(const tt_model *model, tt_compaction **compaction, tt_error *error)
{
    tt_compaction *made = calloc(1, sizeof *made);
    *compaction = made;
    if (!made) {
        return no_memory(error);
    }
    made->model = model;
    made->map_count = tt_model_map_count(model);
    made->train_count = model->trains.count;
    made->trains = calloc((size_t)made->train_count + 1, sizeof *made->trains);
    made->maps = calloc((size_t)made->map_count + 1, sizeof(const tt_linear *));
    made->dense_removed = calloc((size_t)made->map_count + 1, sizeof *made->dense_removed);
    made->folds = calloc(2 * (size_t)model->configuration.layers + 1, sizeof *made->folds);
    bool complete = made->trains && made->maps && made->dense_removed && made->folds;
    for (int i = 0; complete && i < made->map_count; i++) {
        made->maps[i] = tt_model_map(model, i);
    }
    tt_status status = complete ? find(made, error) : no_memory(error);
    if (status != TT_OK) {
        tt_compaction_destroy(compaction);
    }
    return status;
}

bool tt_compaction_cuts(const tt_compaction *compaction)
{
    return compaction->cuts;
}

const tt_layer_shapes *tt_compaction_shapes(const tt_compaction *compaction)
{
    return &compaction->shapes;
}

void tt_compaction_destroy(tt_compaction **compaction)
{
    tt_compaction *gone = *compaction;
    if (gone) {
        for (int i = 0; gone->trains && i < gone->train_count; i++) {
            for (int k = 0; k < TT_MAX_ORDER; k++) {
                free(gone->trains[i].kept[k]);
            }
        }
        free(gone->trains);
        free((void *)gone->maps);
        free(gone->dense_removed);
        free(gone->folds);
        free(gone->shapes.items);
        free(gone);
    }
    *compaction = NULL;
}

/* --- biases that take up what is gone --------------------------------------------------------- */

static double gelu_of(tt_gelu kind, double x)
{
    return kind == TT_GELU_ERF
               ? 0.5 * x * (1.0 + erf(x / sqrt(2.0)))
               : 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

/* One core of the input side, contracted with v [rank, mode, rest] -> [next rank, rest]. */
static void contract_core(const float *core, int64_t rank, int64_t mode, int64_t next, int64_t rest,
                          const double *v, double *result)
{
    memset(result, 0, (size_t)(next * rest) * sizeof *result);
    for (int64_t i = 0; i < rank * mode; i++) {
        for (int64_t j = 0; j < next; j++) {
            for (int64_t k = 0; k < rest; k++) {
                result[j * rest + k] += (double)core[i * next + j] * v[i * rest + k];
            }
        }
    }
}

/* One core of the output side: v [done, rank] -> [done, mode, next rank]. */
static void expand_core(const float *core, int64_t rank, int64_t mode, int64_t next, int64_t done,
                        const double *v, double *result)
{
    memset(result, 0, (size_t)(done * mode * next) * sizeof *result);
    for (int64_t i = 0; i < done; i++) {
        for (int64_t j = 0; j < rank; j++) {
            for (int64_t k = 0; k < mode * next; k++) {
                result[i * mode * next + k] += v[i * rank + j] * (double)core[j * mode * next + k];
            }
        }
    }
}

/* v [N_in] -> v A B in place; `v` and `room` hold the largest of what lies between, see room_of. */
static void apply_train(const tt_model *model, const tt_train *train, const float *values,
                        double **v, double **room)
{
    const tt_train_shape *shape = &train->shape;
    const tt_parameter *items = model->parameters.items;
    int64_t rest = tt_train_inputs(shape), done = 1;
    for (int k = 0; k < shape->order; k++) {
        const float *core = values + items[train->cores[k]].offset;
        int64_t rank = shape->ranks[k], mode = shape->modes[k], next = shape->ranks[k + 1];
        if (k < shape->input_order) {
            rest /= mode;
            contract_core(core, rank, mode, next, rest, *v, *room);
        } else {
            expand_core(core, rank, mode, next, done, *v, *room);
            done *= mode;
        }
        double *swap = *v;
        *v = *room;
        *room = swap;
        /* What remains of the inputs and is done of the outputs has the link as first or last. */
        const float *diagonal =
            k + 1 < shape->order ? values + items[train->diagonals[k]].offset : NULL;
        int64_t beside = k < shape->input_order ? rest : 1;
        for (int64_t i = 0; diagonal && i < done * next * beside; i++) {
            float entry = diagonal[i / beside % next];
            (*v)[i] *= entry > model->trains.threshold ? (double)entry : 0.0;
        }
    }
}

static int64_t room_of(const tt_linear *map)
{
    int64_t widest = map->inputs > map->outputs ? map->inputs : map->outputs, rank = 1;
    for (int k = 0; map->form == TT_TENSOR_TRAIN && k <= map->shape.order; k++) {
        rank = map->shape.ranks[k] > rank ? map->shape.ranks[k] : rank;
    }
    return widest * rank;
}

static void apply_dense(const tt_linear *map, const float *weight, double **v, double **room)
{
    for (int64_t o = 0; o < map->outputs; o++) {
        double sum = 0.0;
        for (int64_t i = 0; i < map->inputs; i++) {
            sum += (double)weight[o * map->inputs + i] * (*v)[i];
        }
        (*room)[o] = sum;
    }
    double *swap = *v;
    *v = *room;
    *room = swap;
}

static tt_status fold_bias(const tt_model *model, const bias_fold *fold, float *values,
                           tt_error *error)
{
    const tt_parameter *items = model->parameters.items;
    const tt_linear *second = fold->second;
    const float *bias = values + items[fold->first->bias].offset;
    float *target = values + items[second->bias].offset;
    double *v = calloc((size_t)room_of(second), sizeof *v);
    double *room = calloc((size_t)room_of(second), sizeof *room);
    if (!v || !room) {
        free(v);
        free(room);
        return no_memory(error);
    }
    for (int64_t i = 0; i < second->inputs; i++) {
        v[i] = fold->gelu ? gelu_of(model->configuration.gelu, (double)bias[i]) : (double)bias[i];
    }
    if (second->form == TT_TENSOR_TRAIN) {
        apply_train(model, tt_linear_train(second), values, &v, &room);
    } else {
        apply_dense(second, values + items[second->weight].offset, &v, &room);
    }
    for (int64_t o = 0; o < second->outputs; o++) {
        target[o] = (float)((double)target[o] + v[o]);
    }
    free(v);
    free(room);
    return TT_OK;
}

/* --- cutting --------------------------------------------------------------------------------- */

/* A parameter as it was, as [left, mode, right], with what stays of left and right; NULL: all. */
typedef struct {
    char name[128];
    int64_t offset;
    int64_t left, mode, right;
    const int32_t *kept_left, *kept_right;
    int64_t left_count, right_count;
} piece;

/* The flat buffers on the host, with where everything lies. */
typedef struct {
    piece *pieces;
    int count;
    int64_t total;
    float *buffers[3];
} snapshot;

static void free_snapshot(snapshot *taken)
{
    free(taken->pieces);
    for (int i = 0; i < 3; i++) {
        free(taken->buffers[i]);
    }
}

static void buffers_of(const tt_parameters *parameters, float *buffers[3])
{
    buffers[0] = parameters->values;
    buffers[1] = parameters->first_moment;
    buffers[2] = parameters->second_moment;
}

static void describe_train(const tt_train *train, const train_cut *cut, piece *pieces)
{
    const tt_train_shape *shape = &train->shape;
    for (int k = 0; k < shape->order; k++) {
        piece *core = &pieces[train->cores[k]];
        core->left = shape->ranks[k];
        core->mode = shape->modes[k];
        core->right = core->right_count = shape->ranks[k + 1];
        core->left_count = core->left;
        if (k > 0) {
            core->kept_left = cut->kept[k - 1];
            core->left_count = cut->kept_count[k - 1];
        }
        if (k + 1 < shape->order) {
            piece *diagonal = &pieces[train->diagonals[k]];
            core->kept_right = diagonal->kept_right = cut->kept[k];
            core->right_count = diagonal->right_count = cut->kept_count[k];
        }
    }
}

static tt_status take_snapshot(const tt_compaction *compaction, snapshot *taken, tt_error *error)
{
    const tt_parameters *parameters = &compaction->model->parameters;
    tt_device *device = parameters->device;
    *taken = (snapshot){.count = parameters->count, .total = parameters->total};
    taken->pieces = calloc((size_t)parameters->count, sizeof *taken->pieces);
    if (!taken->pieces) {
        return no_memory(error);
    }
    for (int i = 0; i < parameters->count; i++) {
        const tt_parameter *item = &parameters->items[i];
        piece *made = &taken->pieces[i];
        *made = (piece){.offset = item->offset,
                        .left = 1,
                        .mode = 1,
                        .right = item->count,
                        .left_count = 1,
                        .right_count = item->count};
        snprintf(made->name, sizeof made->name, "%s", item->name);
    }
    for (int i = 0; i < compaction->train_count; i++) {
        describe_train(&compaction->model->trains.trains[i], &compaction->trains[i], taken->pieces);
    }
    float *buffers[3];
    buffers_of(parameters, buffers);
    for (int i = 0; i < 3 && buffers[i]; i++) {
        taken->buffers[i] = calloc((size_t)taken->total, sizeof *taken->buffers[i]);
        if (!taken->buffers[i]) {
            return no_memory(error);
        }
        device->copy_out(device, taken->buffers[i], buffers[i], tt_floats(taken->total));
    }
    device->synchronize(device);
    return TT_OK;
}

static void gather(const piece *from, const float *source, float *target)
{
    for (int64_t i = 0; i < from->left_count; i++) {
        int64_t left = from->kept_left ? from->kept_left[i] : i;
        for (int64_t m = 0; m < from->mode; m++) {
            const float *row = source + (left * from->mode + m) * from->right;
            for (int64_t j = 0; j < from->right_count; j++) {
                *target++ = row[from->kept_right ? from->kept_right[j] : j];
            }
        }
    }
}

static const piece *find_piece(const snapshot *taken, const char *name)
{
    for (int i = 0; i < taken->count; i++) {
        if (strcmp(taken->pieces[i].name, name) == 0) {
            return &taken->pieces[i];
        }
    }
    return NULL;
}

/* Fills the buffers of the new model. */
static tt_status restore(const snapshot *taken, const tt_parameters *parameters, tt_error *error)
{
    tt_device *device = parameters->device;
    float *host = malloc(tt_floats(parameters->total)), *buffers[3];
    if (!host) {
        return no_memory(error);
    }
    buffers_of(parameters, buffers);
    for (int b = 0; b < 3 && buffers[b]; b++) {
        memset(host, 0, tt_floats(parameters->total));
        for (int i = 0; i < parameters->count; i++) {
            const tt_parameter *item = &parameters->items[i];
            const piece *from = find_piece(taken, item->name);
            if (!from || from->left_count * from->mode * from->right_count != item->count) {
                free(host);
                return tt_error_set(error, TT_DEVICE_FAILED,
                                    "compaction: parameter %s does not come out of the old model",
                                    item->name);
            }
            gather(from, taken->buffers[b] + from->offset, host + item->offset);
        }
        device->copy_in(device, buffers[b], host, tt_floats(parameters->total));
    }
    free(host);
    return TT_OK;
}

static tt_status make_again(const tt_compaction *compaction, tt_model *model, tt_error *error)
{
    tt_configuration configuration = model->configuration;
    tt_model_kind kind = model->kind;
    tt_device *device = model->parameters.device;
    tt_encoder encoder = model->encoder;
    tt_model_free(model);
    TT_TRY(tt_model_create(model, device, &configuration, &kind, &compaction->shapes, error));
    model->trains.shapes = NULL;
    model->encoder.form_choice = encoder.form_choice;
    model->encoder.training = encoder.training;
    model->encoder.seed = encoder.seed;
    return TT_OK;
}

tt_status tt_compaction_apply(tt_compaction *compaction, tt_model *model, tt_error *error)
{
    snapshot taken;
    tt_status status = take_snapshot(compaction, &taken, error);
    for (int i = 0; i < compaction->fold_count && status == TT_OK && taken.buffers[0]; i++) {
        status = fold_bias(model, &compaction->folds[i], taken.buffers[0], error);
    }
    if (status == TT_OK) {
        status = make_again(compaction, model, error);
    }
    if (status == TT_OK) {
        status = restore(&taken, &model->parameters, error);
    }
    free_snapshot(&taken);
    return status;
}
