//! The model of `models/`, compared with what ONNX Runtime makes of it.

use super::*;

fn model() -> Vec<u8> {
    packed("minilm-tools.int8w.onnx")
}

fn packed(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/");
    pack(&std::fs::read(format!("{folder}{name}")).expect("the model")).expect("it is of the family")
}

fn text(tokens: u32) -> Vec<u32> {
    let inner = (0..tokens - 2).map(|at| (7 * at * at + 999) % 30_000);
    [101].into_iter().chain(inner).chain([102]).collect()
}

#[test]
fn vectors_are_those_of_onnx_runtime() {
    let model = model();
    let mut encoder = Encoder::new(&model).expect("a model");
    let shape = encoder.shape();
    assert_eq!((shape.width, shape.heads, shape.inner, shape.layers), (384, 12, 1536, 6));
    // ONNX Runtime 1.31: the first values, the last, and the dot product with cos(0), cos(1), ...
    let mut check = |ids: &[u32], first: [f32; 6], last: f32, dot: f32| {
        let vector = encoder.embed(&[ids]).expect("a vector").remove(0);
        let with_cosines =
            (0..384u16).zip(&vector).map(|(at, value)| f32::from(at).cos() * value).sum::<f32>();
        let near = |value: f32, expected: f32| (value - expected).abs() < 1e-5;
        assert!(vector.iter().zip(first).all(|(value, expected)| near(*value, expected)), "{vector:?}");
        assert!(near(vector[383], last) && near(with_cosines, dot), "{last} {dot}: {vector:?}");
    };
    check(
        &[101, 102],
        [-0.0942456, 0.03985, 0.0073807, -0.0184418, 0.0479828, 0.0164021],
        -0.0062413,
        0.355_312_7,
    );
    check(
        &[101, 2424, 1996, 3274, 2005, 102],
        [-0.0574569, 0.0427139, 0.0281161, -0.0586191, 0.063884, 0.0343707],
        -0.0226635,
        0.834_912,
    );
    check(
        &text(96),
        [-0.0595896, 0.0938277, 0.1245179, 0.0656569, 0.0398437, 0.0626992],
        -0.054443,
        -0.540_911_9,
    );
}

#[test]
fn words_of_four_bits_and_a_projection_are_those_of_onnx_runtime() {
    let model = packed("languages.onnx");
    let mut encoder = Encoder::new(&model).expect("a model");
    let shape = encoder.shape();
    assert_eq!((shape.layers, shape.projects, shape.has_small_words), (12, true, true));
    let inner = (0..94).map(|at| (7 * at * at + 999) % 100_000);
    let long: Vec<u32> = [0].into_iter().chain(inner).chain([2]).collect();
    for (ids, first, last) in [
        (
            &[0, 41, 1294, 12, 61886, 413, 102_772, 93792, 2][..],
            [0.001_518_3, 0.021_775, -0.049_881_9, 0.017_489_6],
            0.020_188_5,
        ),
        (&long, [0.074_099_9, -0.027_022_7, -0.013_456_2, 0.017_648], -0.015_307_7),
    ] {
        let vector = encoder.embed(&[ids]).expect("a vector").remove(0);
        let near = |value: f32, expected: f32| (value - expected).abs() < 1e-5;
        assert!(vector.iter().zip(first).all(|(value, expected)| near(*value, expected)), "{vector:?}");
        assert!(near(vector[383], last), "{vector:?}");
    }
}

#[test]
fn a_vector_does_not_depend_on_the_texts_beside_it() {
    let model = model();
    let mut encoder = Encoder::new(&model).expect("a model");
    let texts = [2, 7, 13, 3, 40, 6, 12].map(text);
    let apart: Vec<Vec<f32>> =
        texts.iter().map(|text| encoder.embed(&[text]).expect("a vector").remove(0)).collect();
    let together: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    assert_eq!(encoder.embed(&together), Ok(apart), "bit by bit");
    assert_eq!(encoder.embed(&[]), Ok(vec![]));
}

#[test]
fn every_instruction_set_makes_the_same_vector() {
    let model = model();
    let mut encoder = Encoder::new(&model).expect("a model");
    let texts = [2, 7, 13, 40].map(text);
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let expected = encoder.embed(&texts).expect("vectors");
    for kernel in Kernel::all() {
        encoder.kernel = kernel;
        let vectors = encoder.embed(&texts).expect("vectors");
        let pairs = vectors.iter().flatten().zip(expected.iter().flatten());
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-5, "{}: {difference}", kernel.instruction_set());
    }
}

#[test]
fn what_cannot_be_run_is_an_error() {
    let model = model();
    let mut encoder = Encoder::new(&model).expect("a model");
    assert_eq!(encoder.embed(&[&[101, 102], &[]]), Err(EncodeError::Empty));
    assert_eq!(encoder.embed(&[&[101, 30_522]]), Err(EncodeError::Token(30_522)));
    assert_eq!(encoder.embed(&[&[1; 513]]), Err(EncodeError::Length(513)));
    assert!(encoder.embed(&[&[1; 512]]).is_ok(), "it works after errors");

    let is_refused = |model: &[u8]| Encoder::new(model).err() == Some(EncodeError::Model);
    assert!(is_refused(b"") && is_refused(b"nonetml2") && is_refused(&model[..model.len() - 1]));
    let mut other = model.clone();
    other[7] += 1;
    assert!(is_refused(&other), "another version");
    let mut other = model;
    other[8..40].fill(0);
    assert!(is_refused(&other), "nothing in it");
}

#[test]
fn a_file_that_is_not_of_the_family_says_why() {
    let check = |file: &[u8], part: &str| {
        let error = pack(file).expect_err("it cannot be packed").to_string();
        assert!(error.contains(part), "{error}");
    };
    check(b"text", "not an ONNX file");
    check(b"", "no graph");
    // An empty graph.
    check(&[0x3a, 0], "no weight `embeddings.words.table.i8`");
}
