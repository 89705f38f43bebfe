//! Signatures and claims of JSON Web Tokens (RFC 7519; what to check: RFC 8725 and RFC 9068).

use std::sync::Once;

use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind, EncodingKey, Header, Validation,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{Error, ErrorKind},
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse},
    signature::{self, Verifier},
};
use nonet_config::JwtAlgorithm;
use ring::signature::{self as ring_signature, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Map, Value};

/// The types of a token that may be one for access (RFC 9068, section 2.1; most issuers write `JWT`).
const TYPES: [&str; 3] = ["at+jwt", "application/at+jwt", "jwt"];

/// A public key of an issuer.
pub(crate) struct SigningKey {
    id: Option<String>,
    /// What it may sign with: algorithms of one family.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// A token before its signature was checked. Nothing of it may be believed.
pub(crate) struct UncheckedToken<'a> {
    token: &'a str,
    header: Header,
    /// Whom it claims to be from.
    pub(super) issuer: String,
}

/// Why a token does not hold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JwtFault {
    /// No known key has its id.
    #[error("it is signed with a key that the issuer does not have")]
    UnknownKey,
    #[error("it is signed with an algorithm that is not allowed")]
    Algorithm,
    #[error("its signature is wrong")]
    Signature,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    Early,
    #[error("it is not an access token (`typ`)")]
    Type,
    #[error("it lacks a claim that it needs (`exp`, `iss`, `sub`)")]
    Incomplete,
    #[error("it cannot be read")]
    Unreadable,
}

impl<'a> UncheckedToken<'a> {
    /// Reads the parts of a token. `None`: it is no signed JSON Web Token, so only its issuer can know it.
    pub(super) fn read(token: &'a str) -> Option<Self> {
        install();
        let header = jsonwebtoken::decode_header(token).ok()?;
        let claims: Map<String, Value> = jsonwebtoken::dangerous::insecure_decode(token).ok()?.claims;
        let issuer = claims.get("iss").and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Self { token, header, issuer })
    }

    /// Whether it may be signed with a key that is not known yet.
    pub(super) fn may_be_of_new_key(&self, fault: &JwtFault) -> bool {
        *fault == JwtFault::UnknownKey || self.header.kid.is_none() && *fault == JwtFault::Signature
    }

    /// Checks it with the keys of its issuer. Returns its claims. Whom it is for is checked later.
    pub(super) fn check(
        &self,
        keys: &[SigningKey],
        allowed: &[JwtAlgorithm],
        skew_secs: u64,
    ) -> Result<Map<String, Value>, JwtFault> {
        let kind = self.header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !TYPES.contains(&kind.as_str()) {
            return Err(JwtFault::Type);
        }
        let algorithm = self.header.alg;
        if !allowed.iter().any(|allowed| algorithm_of(*allowed) == algorithm) {
            return Err(JwtFault::Algorithm);
        }
        let of_id = |key: &&SigningKey| self.header.kid.is_none() || key.id == self.header.kid;
        let mut named = keys.iter().filter(of_id).peekable();
        named.peek().ok_or(JwtFault::UnknownKey)?;
        let mut fault = JwtFault::Algorithm;
        // Without an id, any key may be the right one.
        for key in named.filter(|key| key.algorithms.contains(&algorithm)) {
            let mut validation = Validation::new(algorithm);
            validation.set_required_spec_claims(&["exp", "iss", "sub"]);
            validation.set_issuer(&[&self.issuer]);
            validation.leeway = skew_secs;
            validation.validate_nbf = true;
            validation.validate_aud = false;
            match jsonwebtoken::decode::<Map<String, Value>>(self.token, &key.key, &validation) {
                Ok(token) => return Ok(token.claims),
                Err(error) => fault = error.into(),
            }
            if fault != JwtFault::Signature {
                break;
            }
        }
        Err(fault)
    }
}

impl From<Error> for JwtFault {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::ExpiredSignature => Self::Expired,
            ErrorKind::ImmatureSignature => Self::Early,
            ErrorKind::InvalidAlgorithm => Self::Algorithm,
            ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidIssuer => Self::Incomplete,
            _ => Self::Unreadable,
        }
    }
}

impl SigningKey {
    /// Reads a key of an issuer's set (RFC 7517). `None`: it signs nothing that could be checked here.
    pub(super) fn of(key: &Value) -> Option<Self> {
        let key: Jwk = serde_json::from_value(key.clone()).ok()?;
        let signs = key.common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature);
        let operations = key.common.key_operations.as_ref();
        let verifies = operations.is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !signs || !verifies {
            return None;
        }
        use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
        let mut algorithms = match &key.algorithm {
            AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
            AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
                EllipticCurve::P256 => vec![ES256],
                EllipticCurve::P384 => vec![ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(curve) if curve.curve == EllipticCurve::Ed25519 => vec![EdDSA],
            // A shared secret is no public key.
            _ => return None,
        };
        if let Some(only) = &key.common.key_algorithm {
            let only = named(only);
            algorithms.retain(|algorithm| Some(*algorithm) == only);
        }
        let decoding = DecodingKey::from_jwk(&key).ok()?;
        (!algorithms.is_empty()).then_some(Self { id: key.common.key_id, algorithms, key: decoding })
    }
}

/// Returns the algorithm that a key names for itself. `None`: it is none for signatures.
fn named(algorithm: &KeyAlgorithm) -> Option<Algorithm> {
    algorithm.to_string().parse().ok()
}

fn algorithm_of(allowed: JwtAlgorithm) -> Algorithm {
    match allowed {
        JwtAlgorithm::RS256 => Algorithm::RS256,
        JwtAlgorithm::RS384 => Algorithm::RS384,
        JwtAlgorithm::RS512 => Algorithm::RS512,
        JwtAlgorithm::PS256 => Algorithm::PS256,
        JwtAlgorithm::PS384 => Algorithm::PS384,
        JwtAlgorithm::PS512 => Algorithm::PS512,
        JwtAlgorithm::ES256 => Algorithm::ES256,
        JwtAlgorithm::ES384 => Algorithm::ES384,
        JwtAlgorithm::EdDSA => Algorithm::EdDSA,
    }
}

/// Makes `jsonwebtoken` check signatures with the library that TLS uses here.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails only if another provider was installed first, which checks as well.
        let _ = PROVIDER.install_default();
    });
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Nonet signs nothing.
fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> Result<(), signature::Error> {
        let of_rsa = |parameters| {
            let DecodingKeyKind::RsaModulusExponent { n, e } = self.key.kind() else {
                return Err(signature::Error::new());
            };
            // Some issuers write the modulus with a leading zero.
            let n = &n[n.iter().take_while(|byte| **byte == 0).count()..];
            let key = RsaPublicKeyComponents { n, e };
            key.verify(parameters, message, given).map_err(|_| signature::Error::new())
        };
        let of_curve = |algorithm: &'static dyn ring_signature::VerificationAlgorithm| {
            let key = self.key.try_get_as_bytes().map_err(|_| signature::Error::new())?;
            let key = UnparsedPublicKey::new(algorithm, key);
            key.verify(message, given).map_err(|_| signature::Error::new())
        };
        match self.algorithm {
            Algorithm::RS256 => of_rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => of_rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => of_rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => of_rsa(&ring_signature::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => of_rsa(&ring_signature::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => of_rsa(&ring_signature::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => of_curve(&ring_signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => of_curve(&ring_signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => of_curve(&ring_signature::ED25519),
            _ => Err(signature::Error::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_algorithm_is_checked() {
        let signed: Value = serde_json::from_str(include_str!("tests/signed.json")).expect("a fixture");
        let all = signed["keys"].as_array().expect("keys");
        let keys: Vec<SigningKey> = all.iter().filter_map(SigningKey::of).collect();
        let tokens = signed["tokens"].as_object().expect("tokens");
        let check = |name: &str, keys: &[SigningKey], expected: Result<(), JwtFault>| {
            let token = tokens[name].as_str().expect("a text");
            let unchecked = UncheckedToken::read(token).expect("a token");
            let allowed =
                [JwtAlgorithm::RS256, JwtAlgorithm::RS512, JwtAlgorithm::PS256, JwtAlgorithm::ES384];
            assert_eq!(unchecked.check(keys, &allowed, 0).map(drop), expected, "{name}");
        };
        for name in ["RS256", "RS512", "PS256", "ES384"] {
            check(name, &keys, Ok(()));
        }
        check("PS384", &keys, Err(JwtFault::Algorithm));
        // A key that names its algorithm signs with no other, and one for encryption signs nothing.
        let with = |name: &str, value: &str| {
            let mut key = all[0].clone();
            key[name] = json!(value);
            SigningKey::of(&key).into_iter().collect::<Vec<_>>()
        };
        check("RS256", &with("alg", "RS256"), Ok(()));
        check("PS256", &with("alg", "RS256"), Err(JwtFault::Algorithm));
        check("RS256", &with("alg", "RSA-OAEP"), Err(JwtFault::UnknownKey));
        check("RS256", &with("use", "enc"), Err(JwtFault::UnknownKey));
        check("RS256", &with("kid", "other"), Err(JwtFault::UnknownKey));
        check("RS256", &[], Err(JwtFault::UnknownKey));
        assert!(SigningKey::of(&json!({ "kty": "oct", "k": "c2VjcmV0", "kid": "rsa" })).is_none());
        for broken in
            [json!({}), json!(7), json!({ "kty": "RSA", "n": "!", "e": "AQAB" }), json!({ "kty": "EC" })]
        {
            assert!(SigningKey::of(&broken).is_none(), "{broken}");
        }
    }
}
