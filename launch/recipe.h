/* A recipe: everything that decides a pre-training run, read from YAML.
 *
 * tt_recipe is plain data without pointers: copy it by assignment, there is nothing to free. After
 * tt_recipe_load it is resolved: presets, inherited tensor-train settings and per-phase defaults
 * are filled in, every range is checked, and readers look at the most specific field only (a
 * phase's own `train`, a map's own `form`). Written with tt_recipe_save and read again it is the
 * same recipe.
 *
 * The keys, their defaults, ranges and meanings are one table (recipe_schema.c); it serves the
 * reader, the overrides, the writer and `ttrain inspect`. In a file, a list of values may also be
 * given as one value. Relative paths are relative to the working directory. */
#ifndef TT_LAUNCH_RECIPE_H
#define TT_LAUNCH_RECIPE_H

#include "core/error.h"
#include "core/ops.h"
#include "data/task.h"
#include "data/tokenizer.h"
#include "models/configuration.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    TT_RECIPE_TEXT = 512,    /* bytes of a name, path or pattern, the final 0 included */
    TT_RECIPE_PATTERNS = 16, /* glob patterns in a list */
    TT_RECIPE_PHASES = 8,
    TT_RECIPE_MODES = 8, /* mode sizes on one side of a map */
    TT_RECIPE_RANKS = 2 * TT_RECIPE_MODES - 1,
    TT_RECIPE_STAGES = 8,
};

typedef enum { TT_RECIPE_GRAPH_ON, TT_RECIPE_GRAPH_OFF } tt_recipe_graph;
typedef enum { TT_RECIPE_ON, TT_RECIPE_OFF } tt_recipe_switch;

/* Sizes that a preset fills in where the recipe is silent. */
typedef enum {
    TT_RECIPE_PRESET_NONE,
    TT_RECIPE_PRESET_SMALL,       /* 2 x 64, 2 heads, 256 inner: for tests */
    TT_RECIPE_PRESET_SIX_ENCODER, /* 6 x 768, 12 heads, 3072 inner: the model of the paper */
    TT_RECIPE_PRESET_BERT_BASE,   /* 12 x 768, 12 heads, 3072 inner */
    TT_RECIPE_PRESET_BERT_LARGE,  /* 24 x 1024, 16 heads, 4096 inner */
} tt_recipe_preset;

typedef struct {
    tt_recipe_preset preset;
    int64_t vocabulary_size; /* 0: taken from the tokenizer or the shards */
    int64_t hidden_size;
    int64_t layers;
    int64_t heads;
    int64_t intermediate_size;
    int64_t max_positions;
    int64_t segment_types;
    tt_gelu activation;
    double dropout;           /* after embeddings and after each half of a block */
    double attention_dropout; /* on attention probabilities */
    double layer_norm_epsilon;
    double initializer_range; /* standard deviation of dense weights */
    tt_position_initializer position_initializer;
    bool next_sentence; /* train the next-sentence head as well */
} tt_recipe_model;

typedef enum { TT_RECIPE_DENSE, TT_RECIPE_TENSOR_TRAIN } tt_recipe_form;

/* The kinds of linear maps that can be tensor trains. */
typedef enum {
    TT_RECIPE_ATTENTION,    /* query, key, value and output map: hidden to hidden */
    TT_RECIPE_INTERMEDIATE, /* hidden to inner */
    TT_RECIPE_OUTPUT,       /* inner to hidden */
    TT_RECIPE_POOLER,       /* hidden to hidden */
    TT_RECIPE_TRANSFORM,    /* hidden to hidden, in the masked-language-model head */
    TT_RECIPE_MAP_COUNT,
} tt_recipe_map_kind;

typedef struct {
    tt_recipe_form form;
    int64_t
        order; /* number of cores wanted when mode sizes are chosen automatically; 0: automatic */
    int64_t input_modes[TT_RECIPE_MODES]; /* count 0: chosen automatically */
    uint64_t input_mode_count;
    int64_t output_modes[TT_RECIPE_MODES];
    uint64_t output_mode_count;
    int64_t ranks[TT_RECIPE_RANKS]; /* inner links; count 0: from `rank` or `compression` */
    uint64_t rank_count;
    int64_t rank;       /* cap on every inner link; 0: none */
    double compression; /* dense parameters of the map / tensor-train parameters; 0: no target */
} tt_recipe_map;

typedef enum { TT_RECIPE_EMBEDDING_DENSE, TT_RECIPE_TENSOR_TRAIN_MATRIX } tt_recipe_embedding_form;

/* The word embeddings. */
typedef struct {
    tt_recipe_embedding_form form;
    int64_t order; /* number of cores when modes are chosen automatically; 0: automatic */
    int64_t vocabulary_modes[TT_RECIPE_MODES]; /* count 0: chosen automatically */
    uint64_t vocabulary_mode_count;
    int64_t hidden_modes[TT_RECIPE_MODES];
    uint64_t hidden_mode_count;
    int64_t ranks[TT_RECIPE_RANKS]; /* inner links; count 0: from `rank` */
    uint64_t rank_count;
    int64_t rank; /* cap on every inner link */
    bool tied;    /* the masked-language-model head multiplies with the same table */
} tt_recipe_embedding;

typedef struct {
    /* What the five kinds below take where they do not say otherwise. */
    tt_recipe_form form;
    int64_t order;
    int64_t rank;
    double compression;

    double threshold;         /* diagonal entries at or below it count as zero */
    double initial_deviation; /* of an entry of the assembled matrix; 0: sqrt(1 / (in + out)) */
    tt_recipe_map maps[TT_RECIPE_MAP_COUNT];
    tt_recipe_embedding embedding; /* its rank, too, comes from above */
} tt_recipe_tensor_train;

typedef struct {
    char patterns[TT_RECIPE_PATTERNS][TT_RECIPE_TEXT];
    uint64_t count;
} tt_recipe_patterns;

typedef struct {
    char tokenizer[TT_RECIPE_TEXT]; /* SentencePiece model; "": none, ids only */
    tt_recipe_patterns train;       /* shards */
    tt_recipe_patterns validation;  /* may be empty: no validation */
    int64_t max_predictions;        /* masked positions a sequence; a task has none */
    double mask_probability;        /* dynamic masking only */
    bool whole_word;                /* dynamic masking only */
} tt_recipe_data;

typedef enum { TT_RECIPE_ADAMW, TT_RECIPE_LAMB } tt_recipe_optimizer_kind;

typedef struct {
    tt_recipe_optimizer_kind kind;
    double beta1, beta2, epsilon;
    double weight_decay;
    double clip_norm; /* 0: no clipping */
} tt_recipe_optimizer;

typedef enum {
    TT_RECIPE_DECAY_LINEAR,
    TT_RECIPE_DECAY_POLYNOMIAL,
    TT_RECIPE_DECAY_CONSTANT
} tt_recipe_decay;

typedef struct {
    char name[TT_RECIPE_TEXT];
    int64_t sequence_length;
    int64_t steps;        /* optimizer steps */
    int64_t global_batch; /* sequences a step, over all ranks */
    int64_t micro_batch;  /* sequences a rank works on at a time; 0: its whole share */
    double learning_rate; /* dense rest */
    double core_learning_rate;
    double diagonal_learning_rate;
    double warmup; /* fraction of the phase's steps */
    tt_recipe_decay decay;
    double power; /* of the polynomial */
    tt_recipe_patterns train, validation;
    int64_t max_predictions;
} tt_recipe_phase;

/* The two forms of the rank objective (core/rank.h). */
typedef enum { TT_RECIPE_PAPER, TT_RECIPE_REFERENCE } tt_recipe_objective;

typedef struct {
    tt_recipe_objective objective;
    int64_t compaction_interval; /* steps from one cutting of zero slices to the next; 0: at the end
                                    of a run with stages only */
} tt_recipe_rank;

typedef enum { TT_RECIPE_EARLY, TT_RECIPE_LATE } tt_recipe_stage_kind;

/* A stretch of the run in which ranks are trained too. Stages follow each other from the run's
 * first step on, whatever its phases; after the last one ranks are left alone: nothing draws them
 * to zero, and after one that stops at its target nothing is pruned either. */
typedef struct {
    char name[TT_RECIPE_TEXT];
    tt_recipe_stage_kind kind;
    int64_t steps; /* 0: from `epochs` */
    double epochs; /* 0: from `steps` */
    double gamma;  /* early: of the relaxed size; of the mean diagonal in the reference's form */
    double beta;   /* of the squares of all core entries that are left */
    double rho;    /* late: of what is minimised all the time */
    double w1, w2; /* late: weights of loss and size */
    double target_loss;
    double target_ratio;       /* of the size at the stage's start; 0: from target_parameters */
    int64_t target_parameters; /* of the whole model; 0: from target_ratio */
    bool stop_at_target;       /* late: prune no further than the target */
} tt_recipe_stage;

typedef struct {
    int64_t interval; /* steps; 0: at the end of each phase only */
    int64_t keep;     /* newest checkpoints kept */
    bool keep_best;   /* and the best by validation loss */
} tt_recipe_checkpoint;

typedef struct {
    int64_t interval; /* steps; 0: at the end of each phase only */
    int64_t batches;  /* 0: all */
} tt_recipe_validation;

typedef struct {
    int64_t interval;             /* steps from one line of metrics.jsonl to the next */
    tt_recipe_switch tensorboard; /* whether an event file is written beside metrics.jsonl */
} tt_recipe_log;

/* What a model is fine-tuned for; data.train and data.validation are then the task's files. */
typedef struct {
    tt_task_kind kind; /* none: the recipe is one of pre-training */
} tt_recipe_task;

typedef struct {
    char name[TT_RECIPE_TEXT];
    int64_t seed;
    char output[TT_RECIPE_TEXT]; /* the run's folder */
    tt_device_kind device;
    tt_precision precision;
    tt_recipe_graph graph;           /* whether a GPU is given a step as one captured graph */
    tt_type reduce_precision;        /* of gradients on their way between GPUs */
    bool share_device;               /* several ranks may have one GPU */
    int64_t threads;                 /* a rank; 0: automatic */
    char initialize[TT_RECIPE_TEXT]; /* checkpoint folder whose weights alone are taken; "": none */
    int64_t nonfinite_limit;         /* skipped steps in a row that stop the run */
    tt_recipe_model model;
    tt_recipe_tensor_train tensor_train;
    tt_recipe_data data;
    tt_recipe_task task;
    tt_recipe_optimizer optimizer;
    tt_recipe_phase phases[TT_RECIPE_PHASES];
    uint64_t phase_count;
    tt_recipe_rank rank;
    tt_recipe_stage stages[TT_RECIPE_STAGES];
    uint64_t stage_count;
    tt_recipe_checkpoint checkpoint;
    tt_recipe_validation validation;
    tt_recipe_log log;
} tt_recipe;

/* Reads `path`, applies `overrides` ("key.path=value", list entries as phases.0.steps=100, a whole
 * list as [a, b] or one value) in their order, resolves and checks. On failure the error names the
 * file, the key's path, what was expected and what was found. */
tt_status tt_recipe_load(const char *path, const char *const *overrides, int override_count,
                         tt_recipe *recipe, tt_error *error);
/* The same from memory; `name` stands for the file in errors. */
tt_status tt_recipe_parse(const char *name, const char *text, size_t length,
                          const char *const *overrides, int override_count, tt_recipe *recipe,
                          tt_error *error);

/* Checks every range and what must agree between fields. The two readers call it. */
tt_status tt_recipe_check(const tt_recipe *recipe, tt_error *error);

/* The recipe as YAML text with every key, to be freed with free(); NULL when memory is out. */
char *tt_recipe_text(const tt_recipe *recipe);
/* The same into a file: written under a temporary name, synced, renamed. */
tt_status tt_recipe_save(const tt_recipe *recipe, const char *path, tt_error *error);
/* Every key with its default, range and meaning, for people. */
void tt_recipe_describe(FILE *stream);

/* The same recipe with every map dense, and so without stages. */
void tt_recipe_dense_twin(const tt_recipe *recipe, tt_recipe *twin);

/* Opens the recipe's tokenizer; the error names the key. */
tt_status tt_recipe_open_tokenizer(const tt_recipe *recipe, tt_tokenizer **tokenizer,
                                   tt_error *error);

/* "attention", "intermediate", ...: the key of a map's section. */
const char *tt_recipe_map_name(tt_recipe_map_kind kind);

#endif
