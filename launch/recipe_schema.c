#include "launch/recipe_schema.h"

static const char *const device_names[] = {"auto", "cpu", "cuda", NULL};
static const char *const precision_names[] = {"f32", "tf32", "bf16", NULL};
static const char *const graph_names[] = {"on", "off", NULL};
static const char *const switch_names[] = {"on", "off", NULL};
static const char *const reduce_names[] = {"f32", "bf16", NULL};
static const char *const preset_names[] = {"none",      "small",      "six_encoder",
                                           "bert_base", "bert_large", NULL};
static const char *const position_names[] = {"normal", "sinusoidal", "neighbours", NULL};
static const char *const activation_names[] = {"gelu", "gelu_tanh", NULL};
static const char *const form_names[] = {"dense", "tensor_train", NULL};
static const char *const embedding_form_names[] = {"dense", "tensor_train_matrix", NULL};
static const char *const optimizer_names[] = {"adamw", "lamb", NULL};
static const char *const task_names[] = {"none", "mnli", NULL};
static const char *const decay_names[] = {"linear", "polynomial", "constant", NULL};
static const char *const objective_names[] = {"paper", "reference", NULL};
static const char *const stage_names[] = {"early", "late", NULL};

/* Sizes that later become C ints stay below this. */
#define LARGEST 2147483647.0

#define INTEGER(STRUCT, MEMBER, DEFAULT, MINIMUM, MAXIMUM, HELP)                                   \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_INTEGER, .offset = offsetof(STRUCT, MEMBER),              \
        .fallback = (DEFAULT), .minimum = (MINIMUM), .maximum = (MAXIMUM), .help = (HELP)          \
    }
#define REQUIRED_INTEGER(STRUCT, MEMBER, MINIMUM, MAXIMUM, HELP)                                   \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_INTEGER, .offset = offsetof(STRUCT, MEMBER),              \
        .minimum = (MINIMUM), .maximum = (MAXIMUM), .required = true, .help = (HELP)               \
    }
#define REAL(STRUCT, MEMBER, DEFAULT, MINIMUM, MAXIMUM, HELP)                                      \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_REAL, .offset = offsetof(STRUCT, MEMBER),                 \
        .fallback = (DEFAULT), .minimum = (MINIMUM), .maximum = (MAXIMUM), .help = (HELP)          \
    }
#define POSITIVE_REAL(STRUCT, MEMBER, DEFAULT, MAXIMUM, HELP)                                      \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_REAL, .offset = offsetof(STRUCT, MEMBER),                 \
        .fallback = (DEFAULT), .above_minimum = true, .maximum = (MAXIMUM), .help = (HELP)         \
    }
#define BOOLEAN(STRUCT, MEMBER, DEFAULT, HELP)                                                     \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_BOOLEAN, .offset = offsetof(STRUCT, MEMBER),              \
        .fallback = (DEFAULT), .maximum = 1, .help = (HELP)                                        \
    }
#define CHOICE(STRUCT, MEMBER, DEFAULT, CHOICES, HELP)                                             \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_CHOICE, .offset = offsetof(STRUCT, MEMBER),               \
        .fallback = (DEFAULT), .choices = (CHOICES), .help = (HELP)                                \
    }
#define TEXT(STRUCT, MEMBER, HELP)                                                                 \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_TEXT, .offset = offsetof(STRUCT, MEMBER), .help = (HELP)  \
    }
#define INTEGERS(STRUCT, MEMBER, COUNT, CAPACITY, HELP)                                            \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_INTEGERS, .offset = offsetof(STRUCT, MEMBER),             \
        .count_offset = offsetof(STRUCT, COUNT), .entry_size = sizeof(int64_t),                    \
        .capacity = (CAPACITY), .minimum = 1, .maximum = LARGEST, .help = (HELP)                   \
    }
#define PATTERNS(STRUCT, MEMBER, HELP)                                                             \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_TEXTS,                                                    \
        .offset = offsetof(STRUCT, MEMBER) + offsetof(tt_recipe_patterns, patterns),               \
        .count_offset = offsetof(STRUCT, MEMBER) + offsetof(tt_recipe_patterns, count),            \
        .entry_size = TT_RECIPE_TEXT, .capacity = TT_RECIPE_PATTERNS, .help = (HELP)               \
    }
#define SECTION(STRUCT, MEMBER, FIELDS, HELP)                                                      \
    {                                                                                              \
        .key = #MEMBER, .kind = TT_FIELD_SECTION, .offset = offsetof(STRUCT, MEMBER),              \
        .fields = (FIELDS), .help = (HELP)                                                         \
    }
#define MAP(KEY, INDEX, HELP)                                                                      \
    {                                                                                              \
        .key = (KEY), .kind = TT_FIELD_SECTION,                                                    \
        .offset = offsetof(tt_recipe_tensor_train, maps) + (INDEX) * sizeof(tt_recipe_map),        \
        .fields = map_fields, .help = (HELP)                                                       \
    }
#define END                                                                                        \
    {                                                                                              \
        .key = NULL                                                                                \
    }

static const tt_recipe_field model_fields[] = {
    CHOICE(tt_recipe_model, preset, TT_RECIPE_PRESET_NONE, preset_names,
           "sizes to take where this section is silent"),
    INTEGER(tt_recipe_model, vocabulary_size, 0, 0, LARGEST,
            "ids; 0: from the tokenizer or the shards"),
    REQUIRED_INTEGER(tt_recipe_model, hidden_size, 1, 1048576, "width"),
    REQUIRED_INTEGER(tt_recipe_model, layers, 1, 1024, "encoder blocks"),
    REQUIRED_INTEGER(tt_recipe_model, heads, 1, 1024, "attention heads; they divide the width"),
    REQUIRED_INTEGER(tt_recipe_model, intermediate_size, 1, 4194304,
                     "inner width of the feed-forward half"),
    INTEGER(tt_recipe_model, max_positions, 512, 1, 1048576, "longest sequence"),
    INTEGER(tt_recipe_model, segment_types, 2, 1, 64, "kinds of segments"),
    CHOICE(tt_recipe_model, activation, TT_GELU_ERF, activation_names, "of the feed-forward half"),
    REAL(tt_recipe_model, dropout, 0.1, 0, 0.99, "after embeddings and each half of a block"),
    REAL(tt_recipe_model, attention_dropout, 0.1, 0, 0.99, "on attention probabilities"),
    POSITIVE_REAL(tt_recipe_model, layer_norm_epsilon, 1e-12, 1, "added to the variance"),
    POSITIVE_REAL(tt_recipe_model, initializer_range, 0.02, 10,
                  "standard deviation of dense weights"),
    CHOICE(tt_recipe_model, position_initializer, TT_POSITIONS_NORMAL, position_names,
           "first values of the position embeddings"),
    BOOLEAN(tt_recipe_model, next_sentence, true, "train the next-sentence head"),
    END,
};

static const tt_recipe_field map_fields[] = {
    CHOICE(tt_recipe_map, form, TT_RECIPE_DENSE, form_names, "how the weights are stored"),
    INTEGER(tt_recipe_map, order, 0, 0, 2 * TT_RECIPE_MODES,
            "cores when modes are chosen automatically; 0: automatic"),
    INTEGERS(tt_recipe_map, input_modes, input_mode_count, TT_RECIPE_MODES,
             "factors of the input width; empty: automatic"),
    INTEGERS(tt_recipe_map, output_modes, output_mode_count, TT_RECIPE_MODES,
             "factors of the output width; empty: automatic"),
    INTEGERS(tt_recipe_map, ranks, rank_count, TT_RECIPE_RANKS,
             "inner ranks; empty: from rank and compression"),
    INTEGER(tt_recipe_map, rank, 0, 0, LARGEST, "cap on every inner rank; 0: none"),
    REAL(tt_recipe_map, compression, 0, 0, 1e9, "dense size / tensor-train size; 0: no target"),
    END,
};

static const tt_recipe_field embedding_fields[] = {
    CHOICE(tt_recipe_embedding, form, TT_RECIPE_EMBEDDING_DENSE, embedding_form_names,
           "how the table is stored"),
    INTEGER(tt_recipe_embedding, order, 0, 0, TT_RECIPE_MODES,
            "cores when modes are chosen automatically; 0: automatic"),
    INTEGERS(tt_recipe_embedding, vocabulary_modes, vocabulary_mode_count, TT_RECIPE_MODES,
             "sizes whose product is at least the vocabulary; empty: automatic"),
    INTEGERS(tt_recipe_embedding, hidden_modes, hidden_mode_count, TT_RECIPE_MODES,
             "as many factors of the width; empty: automatic"),
    INTEGERS(tt_recipe_embedding, ranks, rank_count, TT_RECIPE_RANKS,
             "inner ranks; empty: from rank"),
    INTEGER(tt_recipe_embedding, rank, 0, 0, LARGEST, "cap on every inner rank; 0: as above"),
    BOOLEAN(tt_recipe_embedding, tied, true, "the masked-language-model head uses it too"),
    END,
};

static const tt_recipe_field tensor_train_fields[] = {
    CHOICE(tt_recipe_tensor_train, form, TT_RECIPE_DENSE, form_names,
           "of the maps below that do not say otherwise; so order, rank, compression"),
    INTEGER(tt_recipe_tensor_train, order, 0, 0, 2 * TT_RECIPE_MODES,
            "cores when modes are chosen automatically; 0: automatic"),
    INTEGER(tt_recipe_tensor_train, rank, 0, 0, LARGEST, "cap on every inner rank; 0: none"),
    REAL(tt_recipe_tensor_train, compression, 0, 0, 1e9,
         "dense size / tensor-train size; 0: no target"),
    POSITIVE_REAL(tt_recipe_tensor_train, threshold, 1e-2, 0.99,
                  "diagonal entries, 1 at first, at or below it count as zero"),
    REAL(tt_recipe_tensor_train, initial_deviation, 0.02, 0, 10,
         "of an entry of the assembled matrix; 0: sqrt(1 / (in + out))"),
    MAP("attention", TT_RECIPE_ATTENTION, "query, key, value and output maps"),
    MAP("intermediate", TT_RECIPE_INTERMEDIATE, "hidden to inner"),
    MAP("output", TT_RECIPE_OUTPUT, "inner to hidden"),
    MAP("pooler", TT_RECIPE_POOLER, "before the next-sentence head"),
    MAP("transform", TT_RECIPE_TRANSFORM, "in the masked-language-model head"),
    SECTION(tt_recipe_tensor_train, embedding, embedding_fields, "word embeddings"),
    END,
};

static const tt_recipe_field data_fields[] = {
    TEXT(tt_recipe_data, tokenizer, "SentencePiece model or WordPiece vocabulary; empty: ids only"),
    PATTERNS(tt_recipe_data, train, "glob patterns of training shards, or of a task's files"),
    PATTERNS(tt_recipe_data, validation, "the same for validation"),
    INTEGER(tt_recipe_data, max_predictions, 20, 1, 65536, "masked positions a sequence, at most"),
    POSITIVE_REAL(tt_recipe_data, mask_probability, 0.15, 1, "for shards without masks"),
    BOOLEAN(tt_recipe_data, whole_word, false, "mask whole words; for shards without masks"),
    END,
};

static const tt_recipe_field task_fields[] = {
    CHOICE(tt_recipe_task, kind, TT_TASK_NONE, task_names,
           "mnli: pairs of sentences in three classes, from GLUE's .tsv files"),
    END,
};

static const tt_recipe_field optimizer_fields[] = {
    CHOICE(tt_recipe_optimizer, kind, TT_RECIPE_ADAMW, optimizer_names, "the update rule"),
    REAL(tt_recipe_optimizer, beta1, 0.9, 0, 0.999999, "decay of the first moment"),
    REAL(tt_recipe_optimizer, beta2, 0.999, 0, 0.999999999, "decay of the second moment"),
    POSITIVE_REAL(tt_recipe_optimizer, epsilon, 1e-6, 1, "added to the root of the second moment"),
    REAL(tt_recipe_optimizer, weight_decay, 0.01, 0, 1, "not for biases, LayerNorm, diagonals"),
    REAL(tt_recipe_optimizer, clip_norm, 1, 0, 1e9, "largest gradient norm; 0: no clipping"),
    END,
};

static const tt_recipe_field phase_fields[] = {
    TEXT(tt_recipe_phase, name, "for logs; empty: phase1, phase2, ..."),
    REQUIRED_INTEGER(tt_recipe_phase, sequence_length, 4, 1048576, "tokens a sequence"),
    REQUIRED_INTEGER(tt_recipe_phase, steps, 1, 99999999, "optimizer steps"),
    REQUIRED_INTEGER(tt_recipe_phase, global_batch, 1, LARGEST, "sequences a step, all ranks"),
    INTEGER(tt_recipe_phase, micro_batch, 0, 0, LARGEST,
            "sequences a rank takes at a time; 0: all at once"),
    {.key = "learning_rate",
     .kind = TT_FIELD_REAL,
     .offset = offsetof(tt_recipe_phase, learning_rate),
     .above_minimum = true,
     .maximum = 100,
     .required = true,
     .help = "peak, of dense parameters"},
    REAL(tt_recipe_phase, core_learning_rate, 0, 0, 100,
         "peak, of tensor cores; 0: as learning_rate"),
    REAL(tt_recipe_phase, diagonal_learning_rate, 0, 0, 100,
         "peak, of rank diagonals; 0: as learning_rate"),
    REAL(tt_recipe_phase, warmup, 0.1, 0, 1, "fraction of the steps"),
    CHOICE(tt_recipe_phase, decay, TT_RECIPE_DECAY_LINEAR, decay_names, "after the warm-up"),
    POSITIVE_REAL(tt_recipe_phase, power, 0.5, 100, "of the polynomial decay"),
    PATTERNS(tt_recipe_phase, train, "empty: data.train"),
    PATTERNS(tt_recipe_phase, validation, "empty: data.validation"),
    INTEGER(tt_recipe_phase, max_predictions, 0, 0, 65536, "0: data.max_predictions"),
    END,
};

static const tt_recipe_field rank_fields[] = {
    CHOICE(tt_recipe_rank, objective, TT_RECIPE_PAPER, objective_names,
           "what stages minimise: sizes as in the paper, or the mean diagonal entry"),
    INTEGER(tt_recipe_rank, compaction_interval, 0, 0, 1e9,
            "steps between cuts of zero slices; 0: at the end of a run with stages only"),
    END,
};

static const tt_recipe_field stage_fields[] = {
    TEXT(tt_recipe_stage, name, "for logs; empty: early or late"),
    CHOICE(tt_recipe_stage, kind, TT_RECIPE_EARLY, stage_names,
           "early: loss and size; late: towards a target loss and size"),
    INTEGER(tt_recipe_stage, steps, 0, 0, 99999999, "optimizer steps; 0: from epochs"),
    REAL(tt_recipe_stage, epochs, 0, 0, 1e6, "passes over the training data; 0: from steps"),
    REAL(tt_recipe_stage, gamma, 0.01, 0, 1e6, "weight of the relaxed size or mean diagonal"),
    REAL(tt_recipe_stage, beta, 0, 0, 1e6, "weight of the squared core entries"),
    REAL(tt_recipe_stage, rho, 0.1, 0, 1e6, "late: weight of what is minimised all the time"),
    REAL(tt_recipe_stage, w1, 1, 0, 1e6, "late: weight of loss - target"),
    REAL(tt_recipe_stage, w2, 1, 0, 1e6, "late: weight of size - target"),
    REAL(tt_recipe_stage, target_loss, 0, 0, 1e6, "late: the loss to reach"),
    REAL(tt_recipe_stage, target_ratio, 0, 0, 1,
         "late: the size to reach, of that at the stage's start; 0: from target_parameters"),
    INTEGER(tt_recipe_stage, target_parameters, 0, 0, 9007199254740992.0,
            "late: the whole model's parameters to reach; 0: from target_ratio"),
    BOOLEAN(tt_recipe_stage, stop_at_target, true, "late: prune no further than the target size"),
    END,
};

static const tt_recipe_field checkpoint_fields[] = {
    INTEGER(tt_recipe_checkpoint, interval, 1000, 0, 1e9, "steps; 0: at the end of phases only"),
    INTEGER(tt_recipe_checkpoint, keep, 3, 1, 1e6, "newest ones kept"),
    BOOLEAN(tt_recipe_checkpoint, keep_best, true, "keep the best by validation loss as well"),
    END,
};

static const tt_recipe_field validation_fields[] = {
    INTEGER(tt_recipe_validation, interval, 1000, 0, 1e9, "steps; 0: at the end of phases only"),
    INTEGER(tt_recipe_validation, batches, 0, 0, LARGEST, "0: all"),
    END,
};

static const tt_recipe_field log_fields[] = {
    INTEGER(tt_recipe_log, interval, 10, 1, 1e9, "steps between lines of metrics.jsonl"),
    CHOICE(tt_recipe_log, tensorboard, TT_RECIPE_ON, switch_names,
           "the same numbers as a TensorBoard event file"),
    END,
};

const tt_recipe_field tt_recipe_fields[] = {
    TEXT(tt_recipe, name, "of the run; empty: run"),
    INTEGER(tt_recipe, seed, 1, 0, 9007199254740992.0, "of initial weights, order and dropout"),
    TEXT(tt_recipe, output, "the run's folder; empty: runs/NAME"),
    CHOICE(tt_recipe, device, TT_DEVICE_AUTO, device_names,
           "where to train; auto: on a GPU where there is one"),
    CHOICE(tt_recipe, precision, TT_PRECISION_F32, precision_names,
           "of products; bf16: of activations too; tf32 and bf16 on a GPU only"),
    CHOICE(tt_recipe, graph, TT_RECIPE_GRAPH_ON, graph_names,
           "give a GPU each step as one captured graph; same numbers either way"),
    CHOICE(tt_recipe, reduce_precision, TT_F32, reduce_names,
           "of gradients on their way between GPUs"),
    BOOLEAN(tt_recipe, share_device, false,
            "let several ranks have one GPU: slow, for trying things out"),
    INTEGER(tt_recipe, threads, 0, 0, 4096, "a rank; 0: automatic"),
    TEXT(tt_recipe, initialize, "checkpoint, or folder of them, whose weights alone are taken"),
    INTEGER(tt_recipe, nonfinite_limit, 10, 1, 1e9, "skipped steps in a row that stop the run"),
    SECTION(tt_recipe, model, model_fields, "the encoder"),
    SECTION(tt_recipe, tensor_train, tensor_train_fields, "which maps are tensor trains"),
    SECTION(tt_recipe, data, data_fields, "shards and masking"),
    SECTION(tt_recipe, task, task_fields, "what finetune and evaluate are about"),
    SECTION(tt_recipe, optimizer, optimizer_fields, "the update rule"),
    {.key = "phases",
     .kind = TT_FIELD_SECTIONS,
     .offset = offsetof(tt_recipe, phases),
     .count_offset = offsetof(tt_recipe, phase_count),
     .entry_size = sizeof(tt_recipe_phase),
     .capacity = TT_RECIPE_PHASES,
     .fields = phase_fields,
     .help = "one after the other"},
    SECTION(tt_recipe, rank, rank_fields, "how ranks are trained and cut"),
    {.key = "stages",
     .kind = TT_FIELD_SECTIONS,
     .offset = offsetof(tt_recipe, stages),
     .count_offset = offsetof(tt_recipe, stage_count),
     .entry_size = sizeof(tt_recipe_stage),
     .capacity = TT_RECIPE_STAGES,
     .fields = stage_fields,
     .help = "in which ranks are trained, one after the other from the run's start"},
    SECTION(tt_recipe, checkpoint, checkpoint_fields, "when to save"),
    SECTION(tt_recipe, validation, validation_fields, "when to validate"),
    SECTION(tt_recipe, log, log_fields, "when to report"),
    END,
};

const char *tt_recipe_map_name(tt_recipe_map_kind kind)
{
    static const char *const names[TT_RECIPE_MAP_COUNT] = {"attention", "intermediate", "output",
                                                           "pooler", "transform"};
    return names[kind];
}
