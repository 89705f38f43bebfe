//! The messages of an ONNX file, as far as they are read or written here.
//!
//! Follows `onnx.proto` of the ONNX specification; unused parts are carried as bytes. Decoding drops
//! undeclared fields, so compare [`Message::encoded_len`] with the file before writing one back.

use std::collections::HashSet;

use bytes::Bytes;
pub(super) use prost::Message;

/// `TensorProto.DataType`.
pub(super) const FLOAT: i32 = 1;
pub(super) const UINT8: i32 = 2;
pub(super) const INT8: i32 = 3;
/// `AttributeProto.AttributeType`.
pub(super) const INT: i32 = 2;

/// Returns the model in a file; `None` if it cannot be decoded, or has undeclared fields that would be lost.
pub(super) fn read(file: Bytes) -> Option<OnnxModel> {
    let length = file.len();
    OnnxModel::decode(file).ok().filter(|model| model.encoded_len() == length)
}

impl OnnxGraph {
    /// Removes nodes without readers, from the end to the beginning, and weights without readers.
    pub(super) fn drop_unused(&mut self) {
        let mut used: HashSet<String> = self.output.iter().map(|output| output.name().to_owned()).collect();
        let mut kept = Vec::with_capacity(self.node.len());
        for node in std::mem::take(&mut self.node).into_iter().rev() {
            if node.output.iter().any(|output| used.contains(output)) {
                used.extend(node.input.iter().cloned());
                kept.push(node);
            }
        }
        kept.reverse();
        self.node = kept;
        self.initializer.retain(|tensor| used.contains(tensor.name()));
    }
}

impl ValueInfo {
    /// Describes a tensor; a dimension given as text is a name.
    pub(super) fn tensor(name: &str, element: i32, dims: &[&str]) -> ValueInfo {
        #[derive(Message)]
        struct TypeProto {
            #[prost(message, optional, tag = "1")]
            tensor: Option<TensorType>,
        }
        #[derive(Message)]
        struct TensorType {
            #[prost(int32, optional, tag = "1")]
            element: Option<i32>,
            #[prost(message, optional, tag = "2")]
            shape: Option<Shape>,
        }
        #[derive(Message)]
        struct Shape {
            #[prost(message, repeated, tag = "1")]
            dims: Vec<Dimension>,
        }
        #[derive(Message)]
        struct Dimension {
            #[prost(int64, optional, tag = "1")]
            value: Option<i64>,
            #[prost(string, optional, tag = "2")]
            name: Option<String>,
        }
        let dimension = |dim: &&str| match dim.parse() {
            Ok(value) => Dimension { value: Some(value), name: None },
            Err(_) => Dimension { value: None, name: Some((*dim).to_owned()) },
        };
        let shape = Shape { dims: dims.iter().map(dimension).collect() };
        let kind = TypeProto { tensor: Some(TensorType { element: Some(element), shape: Some(shape) }) };
        ValueInfo { name: Some(name.to_owned()), value_type: Some(kind.encode_to_vec()) }
    }
}

/// `ModelProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OnnxModel {
    #[prost(int64, optional, tag = "1")]
    pub(super) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(super) producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) producer_version: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub(super) model_version: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<OnnxGraph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<Opset>,
    #[prost(bytes = "vec", repeated, tag = "14")]
    pub(super) metadata_props: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "25")]
    pub(super) functions: Vec<Vec<u8>>,
}

/// `OperatorSetIdProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Opset {
    #[prost(string, optional, tag = "1")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(super) version: Option<i64>,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OnnxGraph {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<OnnxNode>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "11")]
    pub(super) input: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
    #[prost(bytes = "vec", repeated, tag = "13")]
    pub(super) value_info: Vec<Vec<u8>>,
}

/// `ValueInfoProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) value_type: Option<Vec<u8>>,
}

/// `NodeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OnnxNode {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<Attribute>,
    #[prost(string, optional, tag = "7")]
    pub(super) domain: Option<String>,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(super) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(super) s: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<Tensor>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub(super) g: Option<Vec<u8>>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub(super) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub(super) strings: Vec<Vec<u8>>,
    #[prost(int32, optional, tag = "20")]
    pub(super) kind: Option<i32>,
    #[prost(string, optional, tag = "21")]
    pub(super) ref_attr_name: Option<String>,
}

/// `TensorProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(super) data_type: Option<i32>,
    #[prost(float, repeated, tag = "4")]
    pub(super) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(super) int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub(super) int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub(super) name: Option<String>,
    /// A slice of the decoded file: weights are not copied.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(super) raw_data: Option<Bytes>,
    #[prost(bytes = "vec", repeated, tag = "13")]
    pub(super) external_data: Vec<Vec<u8>>,
    #[prost(int32, optional, tag = "14")]
    pub(super) data_location: Option<i32>,
}
